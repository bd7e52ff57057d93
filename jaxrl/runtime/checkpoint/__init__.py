"""Checkpoints: training states on disk, saved atomically and restored bit for bit."""
