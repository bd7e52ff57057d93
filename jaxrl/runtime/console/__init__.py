"""The terminal: progress, tables and streams."""
