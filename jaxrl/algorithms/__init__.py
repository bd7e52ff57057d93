"""Learning rules: one file per algorithm, each with its config, loss, rule and builder."""
