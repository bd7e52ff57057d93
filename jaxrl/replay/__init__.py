"""Replay: pure ring buffers over rows of ``Rollout``s."""
