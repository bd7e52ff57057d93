"""The version of this package, which the build reads here."""

__version__ = "0.3.0.dev0"
