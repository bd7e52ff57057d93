"""Networks: functions of (observation_space, action_space) that return a ``Model``.

Defaults are the field's: two hidden layers of 64, tanh for actor-critics and ReLU for Q-networks, orthogonal initialisation.
A Dict observation's ``action_mask`` (bool[n]) is applied to logits and Q-values and never encoded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from gymnasium import spaces

from jaxrl.config import check_count
from jaxrl.distributions import MASKED, Categorical, Normal
from jaxrl.spaces import MASK_KEY
from jaxrl.types import Array, Key, Model, PyTree, StepInput

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu, "elu": jax.nn.elu, "silu": jax.nn.silu}
CORES = (None, "gru")


def polar(x: Array) -> Array:
    """The (semi-)orthogonal matrix nearest to ``x``, f32[rows, columns], by matmuls alone.

    40 Newton–Schulz steps X ← 1.5·X − 0.5·X·XᵀX. LAPACK's QR deadlocks when vmapped on few CPU cores.
    """
    multiply = lambda a, b: jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)  # noqa: E731
    rows, columns = x.shape
    x = x if rows >= columns else x.T
    x = jax.lax.fori_loop(0, 40, lambda _, x: 1.5 * x - 0.5 * multiply(x, multiply(x.T, x)), x / jnp.linalg.norm(x))
    return x if rows >= columns else x.T


class OrthogonalKernel(struct.PyTreeNode, nn.meta.AxisMetadata[Array]):
    """What the initialiser ``orthogonal`` gives flax: a kernel, and that ``drawn_at_once`` may draw it anew."""

    value: Array
    gain: float | None = struct.field(pytree_node=False)
    """None in a stack of layers, as ``nn.vmap`` makes: they keep what each has drawn."""

    def unbox(self) -> Array:
        return self.value

    def replace_boxed(self, val: Any) -> Any:
        return self.replace(value=val)

    def add_axis(self, index: int, params: dict[Any, Any]) -> Any:
        return self.replace(gain=None)

    def remove_axis(self, index: int, params: dict[Any, Any]) -> Any:
        return self


def orthogonal(gain: float = math.sqrt(2)) -> Callable[..., OrthogonalKernel]:
    """An initialiser for flax's layers: ``nn.Dense(64, kernel_init=orthogonal(1.0))``, the (semi-)orthogonal times a gain.

    The polar factor of a Gaussian matrix is uniform over orthogonal matrices (Saxe et al. 2014 take the QR factor).
    """

    def init(key: Key, shape: tuple[int, ...], dtype: Any = jnp.float32) -> OrthogonalKernel:
        return OrthogonalKernel((gain * _drawn_alone(key, shape)).astype(dtype), gain)

    return init


@partial(jax.jit, static_argnums=1)  # for its cache: flax calls initialisers, for their shapes, whenever it applies a network
def _drawn_alone(key: Key, shape: tuple[int, ...]) -> Array:
    return polar(jax.random.normal(key, (math.prod(shape[:-1]), shape[-1]))).reshape(shape)


def drawn_at_once(key: Key, variables: PyTree) -> PyTree:
    """What a flax network's ``init`` gave, as plain arrays, with all orthogonal kernels from one draw.

    Each draw of a new shape takes XLA a fifth of a second to compile on a CPU; those of the layers are not used, and go.
    """

    def is_drawn(x: Any) -> bool:
        return isinstance(x, OrthogonalKernel) and x.gain is not None

    leaves, structure = jax.tree.flatten(variables, is_leaf=is_drawn)
    sizes = [leaf.value.size if is_drawn(leaf) else 0 for leaf in leaves]
    drawn = jnp.split(jax.random.normal(key, (sum(sizes),)), list(itertools.accumulate(sizes))[:-1])

    def kernel(value: Array, gain: float, x: Array) -> Array:
        return (gain * polar(x.reshape(-1, value.shape[-1]))).reshape(value.shape).astype(value.dtype)

    kernels = [kernel(leaf.value, leaf.gain, x) if is_drawn(leaf) else leaf for leaf, x in zip(leaves, drawn, strict=True)]
    return nn.meta.unbox(structure.unflatten(kernels))


def dense(features: int, gain: float = math.sqrt(2), name: str | None = None, *, use_bias: bool = True) -> nn.Dense:
    """A layer with an orthogonal kernel times a gain, and a bias of zeros."""
    return nn.Dense(features, use_bias, kernel_init=orthogonal(gain), name=name)


# ---------------------------------------------------------------------------------------------------------------- observations


def split_mask(obs: PyTree) -> tuple[PyTree, Array | None]:
    """A Dict observation without its ``action_mask``, and the mask (None when there is none)."""
    if isinstance(obs, dict) and MASK_KEY in obs:
        return {name: leaf for name, leaf in obs.items() if name != MASK_KEY}, obs[MASK_KEY]
    return obs, None


def encode_space(space: spaces.Space, x: PyTree) -> Array:
    """Flatten a value of ``space`` to f32[..., features]: Discrete one-hot, uint8 scaled to [0, 1], Dict entries side by side."""
    if isinstance(space, spaces.Discrete):
        return jax.nn.one_hot(x - int(space.start), int(space.n), dtype=jnp.float32)
    if isinstance(space, spaces.Box):
        return _flat(space, x.astype(jnp.float32) / (255.0 if x.dtype == jnp.uint8 else 1.0))
    if isinstance(space, spaces.MultiBinary):
        return _flat(space, x.astype(jnp.float32))
    if isinstance(space, spaces.MultiDiscrete):
        x = _flat(space, x - jnp.asarray(space.start, x.dtype))
        parts = [jax.nn.one_hot(x[..., i], int(n), dtype=jnp.float32) for i, n in enumerate(space.nvec.ravel())]
        return jnp.concatenate(parts, axis=-1)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        entries = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        parts = [encode_space(part, x[name]) for name, part in entries if name != MASK_KEY]
        if not parts:
            raise ValueError(
                f"observation_space {space} has nothing for a network to see, as {MASK_KEY} is applied and not encoded: give it "
                "another entry (a constant Box(0, 1, (1,)) will do), or pass a model of your own"
            )
        return jnp.concatenate(parts, axis=-1)
    raise TypeError(
        f"observation_space {space} cannot be encoded by the built-in networks: pass a model of your own (jaxrl.Model)"
    )


def _flat(space: spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete, x: Array) -> Array:
    return x.reshape((*x.shape[: x.ndim - len(space.shape)], math.prod(space.shape)))


def _masked(logits: Array, obs: PyTree) -> Array:
    mask = split_mask(obs)[1]
    return logits if mask is None else jnp.where(mask.astype(bool), logits, MASKED)


# -------------------------------------------------------------------------------------------------------------------- networks


class ActorCriticOutput(NamedTuple):
    """What a PPO-like rule needs of a model."""

    policy: Categorical | Normal
    """Over actions in model units: a bounded Box is [−1, 1] here, the rule scales to the environment's bounds."""
    value: Array
    """f32[...]"""


class MLP(nn.Module):
    """Dense layers, each followed by the activation."""

    hidden_sizes: tuple[int, ...]
    activation: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for i, features in enumerate(self.hidden_sizes):
            x = ACTIVATIONS[self.activation](dense(features, name=f"hidden_{i}")(x))
        return x


class PolicyHead(nn.Module):
    """Logits for a Discrete space; mean and a state-independent log_std (from 0) for a Box."""

    action_space: spaces.Space

    @nn.compact
    def __call__(self, x: Array, obs: PyTree) -> Categorical | Normal:
        if isinstance(self.action_space, spaces.Discrete):
            return Categorical(_masked(dense(int(self.action_space.n), 0.01, "logits")(x), obs))
        size = math.prod(self.action_space.shape or ())
        mean = dense(size, 0.01, "mean")(x)
        log_std = self.param("log_std", nn.initializers.zeros, (size,))
        return Normal(mean, jnp.broadcast_to(log_std, mean.shape))


class ActorCritic(nn.Module):
    """Two separate MLPs, for policy and value."""

    observation_space: spaces.Space
    action_space: spaces.Space
    hidden_sizes: tuple[int, ...]
    activation: str

    @nn.compact
    def __call__(self, inputs: StepInput) -> ActorCriticOutput:
        x = encode_space(self.observation_space, inputs.obs)
        policy = PolicyHead(self.action_space, name="policy")(
            MLP(self.hidden_sizes, self.activation, name="actor")(x), inputs.obs
        )
        value = dense(1, 1.0, "value")(MLP(self.hidden_sizes, self.activation, name="critic")(x))
        return ActorCriticOutput(policy, value[..., 0])


class QNetwork(nn.Module):
    """An MLP to one Q-value per action."""

    observation_space: spaces.Space
    num_actions: int
    hidden_sizes: tuple[int, ...]
    activation: str

    @nn.compact
    def __call__(self, inputs: StepInput) -> Array:
        x = MLP(self.hidden_sizes, self.activation, name="torso")(encode_space(self.observation_space, inputs.obs))
        return _masked(dense(self.num_actions, 1.0, "q")(x), inputs.obs)


class RecurrentActorCritic(nn.Module):
    """Encoder → GRU → policy and value, shared up to the heads; sees the previous action and reward as well (rlpyt)."""

    observation_space: spaces.Space
    action_space: spaces.Space
    hidden_sizes: tuple[int, ...]
    activation: str
    core_size: int

    def setup(self) -> None:
        self.encoder = MLP(self.hidden_sizes, self.activation)
        self.core_input = dense(3 * self.core_size, 1.0)
        self.core_recurrent = dense(3 * self.core_size, 1.0, use_bias=False)
        self.policy_head = PolicyHead(self.action_space)
        self.value_head = dense(1, 1.0)

    def encode(self, inputs: StepInput) -> Array:
        """The part that needs no carry, for all rows at once: the three gates' inputs, [..., 3·core_size]."""
        parts = [
            encode_space(self.observation_space, inputs.obs),
            encode_space(self.action_space, inputs.prev_action) * ~inputs.is_first[..., None],
            inputs.prev_reward[..., None],
        ]
        return self.core_input(self.encoder(jnp.concatenate(parts, axis=-1)))

    def core(self, carry: Array, gates: Array, is_first: Array) -> Array:
        """One GRU step (Cho et al. 2014, reset gate after the matmul), from zero where an episode starts."""
        carry = jnp.where(is_first[..., None], 0.0, carry)
        x_r, x_z, x_n = jnp.split(gates, 3, axis=-1)
        h_r, h_z, h_n = jnp.split(self.core_recurrent(carry), 3, axis=-1)
        update = jax.nn.sigmoid(x_z + h_z)
        return update * carry + (1 - update) * jnp.tanh(x_n + jax.nn.sigmoid(x_r + h_r) * h_n)

    def heads(self, hidden: Array, obs: PyTree) -> ActorCriticOutput:
        return ActorCriticOutput(self.policy_head(hidden, obs), self.value_head(hidden)[..., 0])

    def __call__(self, carry: Array, inputs: StepInput) -> tuple[Array, ActorCriticOutput]:
        carry = self.core(carry, self.encode(inputs), inputs.is_first)
        return carry, self.heads(carry, inputs.obs)


# ---------------------------------------------------------------------------------------------------------------------- models


def _memoryless(network: nn.Module) -> Model:
    def apply(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
        return carry, network.apply(params, inputs)

    def init(key: Key, inputs: StepInput) -> PyTree:
        return drawn_at_once(key, network.init(key, inputs))

    return Model(init, apply, apply, lambda batch_size: ())


def _recurrent(network: RecurrentActorCritic) -> Model:
    def initial_carry(batch_size: int) -> Array:
        return jnp.zeros((batch_size, network.core_size), jnp.float32)

    def init(key: Key, inputs: StepInput) -> PyTree:
        return drawn_at_once(key, network.init(key, initial_carry(inputs.is_first.shape[0]), inputs))

    def apply(params: PyTree, carry: Array, inputs: StepInput, key: Key | None = None) -> tuple[Array, Any]:
        carry, output = network.apply(params, carry, inputs)
        return carry, output

    def unroll(params: PyTree, carry: Array, inputs: StepInput, key: Key | None = None) -> tuple[Array, Any]:
        run: Any = partial(network.apply, params)

        def step(carry: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            carry = run(carry, *row, method=network.core)
            return carry, carry

        gates = run(inputs, method=network.encode)
        carry, hidden = jax.lax.scan(step, carry, (gates, inputs.is_first))
        return carry, run(hidden, inputs.obs, method=network.heads)

    return Model(init, apply, unroll, initial_carry)


def _check_network(hidden_sizes: Sequence[int], activation: str) -> tuple[int, ...]:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} is unknown: choose one of {sorted(ACTIVATIONS)}")
    sizes = tuple(hidden_sizes) if isinstance(hidden_sizes, Sequence) else (None,)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise ValueError(f"hidden_sizes={hidden_sizes!r} must be positive integers, as in (64, 64)")
    return sizes


def actor_critic(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: str = "tanh",
    core: str | None = None,
    core_size: int = 64,
) -> Model:
    """A policy and a value: outputs are ``ActorCriticOutput``.

    Args:
      observation_space: anything that flattens (Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple).
      action_space: Discrete, or Box.
      hidden_sizes: units of each layer; of the encoder when there is a core.
      activation: "tanh", "relu", "elu" or "silu".
      core: None, or "gru" for a recurrent model that also sees the previous action and reward.
      core_size: units of the core.
    """
    sizes = _check_network(hidden_sizes, activation)
    if core not in CORES:
        raise ValueError(f"core={core!r} is unknown: choose one of {CORES}")
    core_size = check_count("core_size", core_size)
    if not isinstance(action_space, spaces.Discrete | spaces.Box):
        raise TypeError(f"action_space is {action_space}: actor_critic has heads for Discrete and Box spaces")
    if core == "gru":
        return _recurrent(RecurrentActorCritic(observation_space, action_space, sizes, activation, core_size))
    return _memoryless(ActorCritic(observation_space, action_space, sizes, activation))


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
    return _memoryless(QNetwork(observation_space, int(action_space.n), sizes, activation))
