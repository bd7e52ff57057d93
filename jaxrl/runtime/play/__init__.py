"""Policies at work: evaluation, loading, recording."""
