"""How one kind of environment trains many seeds."""
