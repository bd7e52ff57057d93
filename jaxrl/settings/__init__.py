"""Settings: ranges, and names of the same settings in other libraries."""
