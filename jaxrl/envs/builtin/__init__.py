"""Built-in environments: small tasks with goals."""
