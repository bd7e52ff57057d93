"""Several agents: environments with unequal spaces, padded to common ones. ``Env.num_agents`` documents the contract."""

from jaxrl.envs.teams import Team, pad

__all__ = ["Team", "pad"]
