"""Learning curves as pictures, and the statistics in them."""
