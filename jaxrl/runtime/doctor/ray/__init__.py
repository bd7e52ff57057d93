"""Checks of a cluster of Ray, hop by hop: ``jaxrl doctor --ray``."""
