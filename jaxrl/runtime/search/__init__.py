"""Search for settings: grids, and trials as lanes of one program."""
