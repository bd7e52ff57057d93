"""Results of a search: the comparison with the default settings, files and pictures."""
