"""Measurements: speed compared with peers and a raw bound, and scores at the end of training. See ``python -m benchmarks``."""
