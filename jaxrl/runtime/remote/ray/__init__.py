"""Remote objects as actors of Ray."""
