"""Backends: libraries of environments, one file each. ``jaxrl.envs`` imports one when it is asked for."""
