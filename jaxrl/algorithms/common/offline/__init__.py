"""Parts of algorithms for offline learning: datasets, cloned actions, weights of advantages, and conservative values."""
