"""Evaluation: policies loaded, played and drawn."""
