"""Rendering of environments that have no renderer of their own, or one that is unsuitable."""
