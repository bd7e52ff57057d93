"""Code that a family of algorithms shares."""
