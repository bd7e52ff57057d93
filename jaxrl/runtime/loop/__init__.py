"""One run from its first iteration to its last."""
