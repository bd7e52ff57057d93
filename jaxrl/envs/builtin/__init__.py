"""Built-in environments: small goal-conditioned tasks."""
