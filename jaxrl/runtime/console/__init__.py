"""Terminal output: progress, tables and streams."""
