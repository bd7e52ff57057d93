"""Algorithms. Each file holds the config, loss, update and builder of one algorithm; ``jaxrl.registry`` lists them."""

from jaxrl.registry import ALGORITHMS, Entry, Paper, known_as, setting_names, title_of, unknown_algorithm

__all__ = ["ALGORITHMS", "Entry", "Paper", "known_as", "setting_names", "title_of", "unknown_algorithm"]
