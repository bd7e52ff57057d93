"""Settings: their ranges, and the names that other libraries have for them."""
