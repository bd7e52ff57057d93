"""Trainers: the fused program for pure environments, and the host loop."""
