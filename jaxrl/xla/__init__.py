"""Workarounds for the speed or for bugs of XLA. Each file can be removed independently."""
