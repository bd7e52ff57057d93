"""Remote objects in processes of this machine."""
