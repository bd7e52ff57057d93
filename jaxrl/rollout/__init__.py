"""Rollouts: collecting them, resetting environments, and running statistics."""
