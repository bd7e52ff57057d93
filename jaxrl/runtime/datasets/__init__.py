"""Datasets as files: reading, writing, collecting and describing them."""
