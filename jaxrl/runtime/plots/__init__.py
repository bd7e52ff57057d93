"""Plots: learning curves and statistics over seeds."""
