"""Samplers: rollouts of environments on the host."""
