"""Rendering of environments that cannot draw themselves."""
