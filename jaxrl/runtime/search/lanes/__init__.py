"""Programs of a search: its slots in one process, in groups, and over processes."""
