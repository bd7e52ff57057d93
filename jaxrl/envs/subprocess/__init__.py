"""Environments and workers in separate processes."""
