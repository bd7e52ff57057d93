"""Evolution strategies: the noise of members, and the shaping of their fitness."""
