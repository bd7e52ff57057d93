"""The training loop: a run from its plan to its end."""
