"""Exploration: epsilon-greedy actions and action noise."""
