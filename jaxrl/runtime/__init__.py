"""Training outside of JAX: checkpoints, the run loop, logs, plots and the command line."""
