"""Samplers: collect rollouts from host environments."""
