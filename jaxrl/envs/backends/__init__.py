"""Backends: one module per library of environments. ``jaxrl.envs`` imports each on first use."""
