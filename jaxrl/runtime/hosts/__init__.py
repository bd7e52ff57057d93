"""Several processes, on one machine or many, that train together."""
