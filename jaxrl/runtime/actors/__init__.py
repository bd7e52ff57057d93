"""Workers that collect rollouts in processes of their own, and what keeps them going."""
