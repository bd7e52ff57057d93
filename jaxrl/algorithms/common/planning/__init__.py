"""Planning in continuous actions: planners, and the dynamics in which they evaluate sequences of actions."""
