"""Checks of environments: ``check_env``, and what builders validate."""
