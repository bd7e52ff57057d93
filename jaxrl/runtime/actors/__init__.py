"""Actors: worker processes that collect rollouts, and the pool that supervises them."""
