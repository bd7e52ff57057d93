"""Code for speed, and workarounds for bugs of XLA. Each file can be removed independently."""
