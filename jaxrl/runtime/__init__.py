"""What touches the world: checkpoints, the run loop, logs, plots and the command line."""
