"""Networks: functions of (observation_space, action_space) that return a ``Model``.

The defaults depend on the observations. Vectors get two hidden layers of 64 units, with tanh in actor-critics and ReLU in
Q-networks. Images get the convolutions of the Nature paper, boards those of MinAtar. Initial kernels are orthogonal. A Dict
observation's ``action_mask`` (``jaxrl.spaces.action_masks.MASK_KEY``) is applied to logits and Q-values and is never encoded. Its
``privileged_state`` (``jaxrl.spaces.entries.PRIVILEGED_KEY``) is for critics that are asked to see it, never for a policy.
"""

from __future__ import annotations

from functools import partial

from gymnasium import spaces

from jaxrl.models.batch_renorm import BatchRenorm
from jaxrl.models.config import ActorCriticConfig, GreedyPolicyConfig, QNetworkConfig
from jaxrl.models.configured import configured_by
from jaxrl.models.control import action_value, deterministic_policy, policy_network
from jaxrl.models.cores import CORES, recurrent
from jaxrl.models.dynamics.latent import latent_dynamics, latent_prediction, representation
from jaxrl.models.dynamics.probabilistic import StepPrediction, dynamics_network
from jaxrl.models.encoders import MLP, encode_space, split_mask
from jaxrl.models.heads import ActorCriticOutput, PolicyHead, check_initial_std
from jaxrl.models.images import ImpalaCNN, MinAtarCNN, NatureCNN, board_convolution
from jaxrl.models.initialisers import ACTIVATIONS, OrthogonalKernel, dense, drawn_at_once, orthogonal, polar
from jaxrl.models.networks import (
    ActorCritic,
    GreedyPolicy,
    QNetwork,
    RecurrentActorCritic,
    RecurrentGreedyPolicy,
    RecurrentQNetwork,
    SeparateActorCritic,
)
from jaxrl.models.settings import make_network
from jaxrl.models.values import QuantileOutput, value_network
from jaxrl.models.wrap import from_linen, from_nnx, per_agent
from jaxrl.settings.loadable import component
from jaxrl.spaces.entries import check_privileged
from jaxrl.types import Model

__all__ = [
    "ACTIVATIONS",
    "CORES",
    "MLP",
    "ActorCriticOutput",
    "BatchRenorm",
    "ImpalaCNN",
    "MinAtarCNN",
    "NatureCNN",
    "OrthogonalKernel",
    "PolicyHead",
    "QuantileOutput",
    "StepPrediction",
    "action_value",
    "actor_critic",
    "board_convolution",
    "dense",
    "deterministic_policy",
    "drawn_at_once",
    "dynamics_network",
    "encode_space",
    "from_linen",
    "from_nnx",
    "greedy_policy",
    "latent_dynamics",
    "latent_prediction",
    "orthogonal",
    "per_agent",
    "polar",
    "policy_network",
    "q_network",
    "representation",
    "split_mask",
    "value_network",
]


@component("model")
@configured_by(ActorCriticConfig)
def actor_critic(observation_space: spaces.Space, action_space: spaces.Space, config: ActorCriticConfig) -> Model:
    """Build a policy and a value. Outputs are ``ActorCriticOutput``.

    Args:
      action_space: Discrete, MultiDiscrete or Box.
    """
    network = make_network(observation_space, config, activation="tanh")
    if not isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete | spaces.Box):
        raise TypeError(f"action_space is {action_space}: actor_critic needs a Discrete, MultiDiscrete or Box space")
    check_initial_std(config.initial_std, action_space)
    squash, shared, critic = config.squash, config.shared, network
    if config.critic == "privileged":
        check_privileged(observation_space, "critic='privileged'")
        shared, critic = False, make_network(observation_space, config, activation="tanh", privileged=True)
    if squash and not (isinstance(action_space, spaces.Box) and action_space.is_bounded()):
        raise ValueError(f"squash=True needs a Box with bounds on all sides, but action_space is {action_space}: leave it out")
    if shared is None:
        shared = config.core is not None or network.has_image
    heads = config.num_values, config.initial_std
    if config.core is None:
        return from_linen(ActorCritic(network, action_space, squash, shared, critic, *heads))
    core = CORES[config.core]
    carry = partial(core.initial_carry, network)
    if shared:
        return recurrent(RecurrentActorCritic(network, action_space, squash, *heads), carry, parallel=core.parallel)
    both = lambda batch_size: (carry(batch_size), carry(batch_size))  # noqa: E731
    return recurrent(SeparateActorCritic(network, action_space, squash, critic, *heads), both, parallel=core.parallel)


@component("model")
@configured_by(QNetworkConfig)
def q_network(observation_space: spaces.Space, action_space: spaces.Space, config: QNetworkConfig) -> Model:
    """Build a Q-network for a Discrete action space. Outputs are f32[..., n].

    Args:
      action_space: Discrete.
    """
    if config.dueling:
        return value_network(observation_space, action_space, **vars(config))
    network = make_network(observation_space, config)
    if not isinstance(action_space, spaces.Discrete):
        raise TypeError(f"action_space is {action_space}: a Q-network needs a Discrete space")
    if config.core is None:
        return from_linen(QNetwork(network, action_space))
    core = CORES[config.core]
    carry = partial(core.initial_carry, network)
    return recurrent(RecurrentQNetwork(network, action_space), carry, parallel=core.parallel)


@component("model")
@configured_by(GreedyPolicyConfig)
def greedy_policy(observation_space: spaces.Space, action_space: spaces.Space, config: GreedyPolicyConfig) -> Model:
    """Build a policy without exploration.

    For a Box, outputs are actions f32[..., d], in [−1, 1] if the space is bounded; the algorithm scales them to the bounds. For
    a Discrete or MultiDiscrete space, outputs are a ``Categorical`` or ``MultiCategorical``, whose mode is the action.

    Args:
      action_space: Discrete, MultiDiscrete or Box.
    """
    if not isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete | spaces.Box):
        raise TypeError(f"action_space is {action_space}: greedy_policy needs a Discrete, MultiDiscrete or Box space")
    bounded = isinstance(action_space, spaces.Box) and action_space.is_bounded()
    if config.squash and not bounded:
        raise ValueError(f"squash=True needs a Box with bounds on all sides, but action_space is {action_space}: leave it out")
    network, squash = make_network(observation_space, config, activation="tanh"), bool(config.squash)
    if config.core is None:
        return from_linen(GreedyPolicy(network, action_space, squash))
    core = CORES[config.core]
    carry = partial(core.initial_carry, network)
    return recurrent(RecurrentGreedyPolicy(network, action_space, squash), carry, parallel=core.parallel)
