"""Objects in other processes, here or on a cluster. The public names are in ``jaxrl.remote``."""
