"""Evaluation: loading, playing and rendering of policies."""
