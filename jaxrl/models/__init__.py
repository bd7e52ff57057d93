"""Networks: functions of (observation_space, action_space) that return a ``Model``.

Defaults are the field's: two hidden layers of 64, tanh for actor-critics and ReLU for Q-networks, orthogonal initialisation.
A Dict observation's ``action_mask`` (``jaxrl.spaces.MASK_KEY``) is applied to logits and Q-values and never encoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from gymnasium import spaces

from jaxrl.config import check_count, check_switches
from jaxrl.models.cores import CORES, memoryless, recurrent
from jaxrl.models.encoders import ACTIVATIONS, MLP, encode_space, split_mask
from jaxrl.models.heads import ActorCriticOutput, PolicyHead
from jaxrl.models.initialisers import OrthogonalKernel, dense, drawn_at_once, orthogonal, polar
from jaxrl.models.networks import ActorCritic, QNetwork, RecurrentActorCritic
from jaxrl.types import Model

__all__ = [
    "ACTIVATIONS",
    "CORES",
    "MLP",
    "ActorCritic",
    "ActorCriticOutput",
    "OrthogonalKernel",
    "PolicyHead",
    "QNetwork",
    "RecurrentActorCritic",
    "actor_critic",
    "dense",
    "drawn_at_once",
    "encode_space",
    "orthogonal",
    "polar",
    "q_network",
    "split_mask",
]

for _public in (dense, drawn_at_once, encode_space, orthogonal, polar, split_mask):
    _public.__module__ = __name__  # the name in specs, which outlives the files of this room


def actor_critic(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: str = "tanh",
    core: str | None = None,
    core_size: int = 64,
    squash: bool = False,
) -> Model:
    """A policy and a value: outputs are ``ActorCriticOutput``.

    Args:
      observation_space: anything that flattens (Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple).
      action_space: Discrete, MultiDiscrete or Box.
      hidden_sizes: units of each layer; of the encoder when there is a core.
      activation: "tanh", "relu", "elu" or "silu".
      core: None, or "gru" for a recurrent model that also sees the previous action and reward.
      core_size: units of the core.
      squash: for a bounded Box, squash the Gaussian between the bounds (``TanhNormal``) instead of clipping what it draws.
    """
    sizes = _check_network(hidden_sizes, activation)
    if core not in CORES:
        raise ValueError(f"core={core!r} is unknown: choose one of {CORES}")
    core_size = check_count("core_size", core_size)
    if not isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete | spaces.Box):
        raise TypeError(f"action_space is {action_space}: actor_critic has heads for Discrete, MultiDiscrete and Box spaces")
    check_switches(squash=squash)
    if squash and not (isinstance(action_space, spaces.Box) and action_space.is_bounded()):
        raise ValueError(f"squash=True needs a Box with bounds on all sides, and action_space is {action_space}: leave it out")
    if core == "gru":
        return recurrent(RecurrentActorCritic(observation_space, action_space, sizes, activation, core_size, squash))
    return memoryless(ActorCritic(observation_space, action_space, sizes, activation, squash))


def q_network(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: str = "relu",
) -> Model:
    """Q-values of a Discrete action space: outputs are f32[..., n]."""
    sizes = _check_network(hidden_sizes, activation)
    if not isinstance(action_space, spaces.Discrete):
        raise TypeError(f"action_space is {action_space}: a Q-network needs a Discrete one")
    return memoryless(QNetwork(observation_space, int(action_space.n), sizes, activation))


def _check_network(hidden_sizes: Sequence[int], activation: str) -> tuple[int, ...]:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} is unknown: choose one of {sorted(ACTIVATIONS)}")
    sizes = tuple(hidden_sizes) if isinstance(hidden_sizes, Sequence) else (None,)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise ValueError(f"hidden_sizes={hidden_sizes!r} must be positive integers, as in (64, 64)")
    return sizes
