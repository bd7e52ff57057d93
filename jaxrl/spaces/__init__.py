"""Spaces: trees of arrays, action scaling, action masks and goals."""
