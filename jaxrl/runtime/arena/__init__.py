"""Games between policies: all pairs, from both sides, and ratings of the results."""
