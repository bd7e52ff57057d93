"""Several processes on this machine that train together, supervised: started, shown, and started again after a fault."""
