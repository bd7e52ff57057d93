"""Ensembles of critics: their values, losses, distributions and updates."""
