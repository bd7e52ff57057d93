"""Commands that search for settings: grids, and advisers."""
