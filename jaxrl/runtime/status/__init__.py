"""State of a run or a sweep, read from its folder by another process, without JAX."""
