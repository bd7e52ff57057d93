"""Builders: from the arguments of ``make_*`` to an agent and its spec."""
