"""Networks of learned models of an environment."""
