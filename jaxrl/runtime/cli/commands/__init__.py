"""Commands, one module each, imported on demand."""
