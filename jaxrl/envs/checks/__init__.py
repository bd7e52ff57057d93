"""Checks of environments: ``check_env``, and the validation that builders run."""
