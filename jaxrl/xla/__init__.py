"""Code that exists for speed or around a bug of XLA's. Each file can be deleted by itself."""
