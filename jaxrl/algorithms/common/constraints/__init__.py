"""Constraints on the cost of episodes: its estimate, and the Lagrange multiplier that keeps it at a limit."""
