"""States on the disk: saved whole, restored bit for bit."""
