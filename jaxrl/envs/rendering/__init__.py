"""Renderers for environments that have none, or an unsuitable one."""
