"""MuZero's learned model (Schrittwieser et al. 2020): networks on latent states, and distributions of rewards and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.algorithms.common.planning.tree_search import Node
from jaxrl.algorithms.common.q_heads import normal_histogram, projected
from jaxrl.algorithms.common.value_rescaling import Rescale, scale
from jaxrl.builder.attempt import show
from jaxrl.builder.networks import check_arguments, check_statistics, is_recurrent, model_output, resolve_model
from jaxrl.distributions import Categorical
from jaxrl.models import ActorCriticOutput, latent_dynamics, latent_prediction
from jaxrl.models.dynamics.latent import DynamicsOutput, PredictionOutput, latent_space
from jaxrl.models.heads import masked
from jaxrl.rollout.inputs import example_input, without_history
from jaxrl.spaces.trees import same_shapes, show_shapes
from jaxrl.types import Array, Env, HostEnv, Key, Model, PyTree, StepInput

ENDS, SAME_PLAYER, OTHER_PLAYER = range(3)
"""Continuations after an action: the episode ends, the same player moves, the other player moves."""


SHARED = ("hidden_sizes", "activation", "layer_norm", "dtype")
"""Arguments of the representation that apply to the networks on its latent states as well. Others are about observations."""


class Support(NamedTuple):
    """Values of a categorical distribution of rewards or returns, evenly spaced on the scale of ``rescale``."""

    limit: float
    """The largest absolute value, in units of the reward."""
    num_bins: int
    rescale: Rescale | None
    sigma: float = 0.0
    """Standard deviation of targets, in widths of a bin; 0: two neighbours share a target."""

    @property
    def bins(self) -> Array:
        """f32[K]"""
        return jnp.asarray(np.linspace(-1.0, 1.0, self.num_bins, dtype=np.float32)) * scale(self.rescale)[0](
            jnp.float32(self.limit)
        )

    def encode(self, x: Array) -> Array:
        """Return probabilities f32[..., K] for x, f32[...]: with ``sigma`` those of a normal distribution around it, else those
        of two neighbours, whose mean is x (appendix F)."""
        bins, where = self.bins, scale(self.rescale)[0](x)
        if self.sigma:
            width = bins[1] - bins[0]
            edges = jnp.concatenate([bins - 0.5 * width, bins[-1:] + 0.5 * width])
            return normal_histogram(where, edges, self.sigma * width)
        where = where.reshape(-1, 1)
        return projected(jnp.ones_like(where), where, bins).reshape((*x.shape, -1))

    def decode(self, logits: Array) -> Array:
        """Return the mean f32[...] of a distribution with logits f32[..., K], in units of the reward."""
        return scale(self.rescale)[1]((jax.nn.softmax(logits) * self.bins).sum(-1))


class LatentParams(NamedTuple):
    """Parameters of the three networks."""

    representation: PyTree
    dynamics: PyTree
    prediction: PyTree


@dataclass(frozen=True)
class LatentModel:
    """MuZero's three networks."""

    representation: Model
    dynamics: Model
    prediction: Model
    support: Support
    action_space: spaces.Discrete

    def init(self, key: Key, inputs: StepInput) -> LatentParams:
        keys, latent = jax.random.split(key, 3), self._example(inputs)
        return LatentParams(
            self.representation.init(keys[0], inputs),
            self.dynamics.init(keys[1], latent._replace(obs=(latent.obs, latent.prev_action))),
            self.prediction.init(keys[2], latent),
        )

    def _example(self, inputs: StepInput) -> StepInput:
        params = jax.eval_shape(self.representation.init, jax.random.key(0), inputs)
        state = jax.eval_shape(lambda params: self.representation.apply(params, (), inputs)[1], params)
        return example_input(latent_space(state.shape[-1]), self.action_space)

    def represent(self, params: LatentParams, inputs: StepInput) -> Array:
        """Return the latent states f32[..., d] of observations."""
        return to_unit(self.representation.apply(params.representation, (), inputs)[1])

    def predict(self, params: LatentParams, state: Array) -> PredictionOutput:
        """Return priors and values of latent states."""
        return self.prediction.apply(params.prediction, (), without_history(state, state[..., 0]))[1]

    def step(self, params: LatentParams, state: Array, action: Array) -> DynamicsOutput:
        """Return what follows actions i32[...] in latent states f32[..., d]; the next states are scaled."""
        inputs = without_history((state, action), state[..., 0])
        output = self.dynamics.apply(params.dynamics, (), inputs)[1]
        return output._replace(state=to_unit(output.state))

    def act(self, params: LatentParams, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
        """Return the prior over actions and the value, without a search: ``Model.apply``."""
        output = self.predict(params, self.represent(params, inputs))
        policy = Categorical(masked(output.logits, inputs.obs))
        return carry, ActorCriticOutput(policy, self.support.decode(output.value))

    @property
    def as_model(self) -> Model:
        return Model(self.init, self.act, self.act, self.representation.initial_carry)


def to_unit(state: Array) -> Array:
    """Scale latent states f32[..., d] to [0, 1] by the smallest and largest of their numbers (appendix G)."""
    low, high = state.min(-1, keepdims=True), state.max(-1, keepdims=True)
    return (state - low) / jnp.maximum(high - low, 1e-5)


def turn_values(logits: Array) -> Array:
    """Return the expected factor f32[...] on the value that follows, without γ: 0 for an end, 1 for a move of the same player, −1
    for one of the other."""
    return jax.nn.softmax(logits) @ jnp.asarray([0.0, 1.0, -1.0][: logits.shape[-1]])


# --------------------------------------------------------------------------------------------------------------------- builder


def with_shared_arguments(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a builder in which the ``SHARED`` arguments of ``model`` apply to the other networks too.

    Raises:
      TypeError: arguments of ``dynamics`` or ``prediction`` that these networks do not take.
      ValueError: one that has no effect.
    """
    model, others = parts["model"], {}
    for keyword, network in {"dynamics": latent_dynamics, "prediction": latent_prediction}.items():
        part = parts[keyword]
        if isinstance(part, Mapping):
            check_arguments(network, part, keyword)
            if part.get("use_previous"):
                raise ValueError(f"{keyword}={{'use_previous': True}} has no effect: its network gets latent states alone")
        if isinstance(model, Mapping) and (part is None or isinstance(part, Mapping)):
            shared = {name: value for name, value in model.items() if name in SHARED}
            part = {**shared, **(part or {})} or None
        others[keyword] = part
    return {**parts, **others}


def resolve_latent_model(
    representation: Model, output: PyTree, parts: Mapping[str, Any], env: Env | HostEnv, support: Support
) -> LatentModel:
    """Resolve the keywords ``dynamics`` and ``prediction`` of a builder, for latent states as its ``model`` gives them.

    Args:
      representation: the resolved ``model``, whose outputs for a batch of one have the shapes ``output``.
      parts: the builder's keywords, from ``with_shared_arguments``.

    Raises:
      TypeError: a network is not a memoryless Model with the right outputs.
    """
    shape: tuple[int, ...] = getattr(output, "shape", ())
    action_space, bins = cast(spaces.Discrete, env.action_space), support.num_bins
    if len(shape) != 2 or not jnp.issubdtype(output.dtype, jnp.floating):
        raise TypeError(
            f"model={show(parts['model'])} must give latent states f32[batch, d]; for a batch of one it gives "
            f"{show_shapes(output)}"
        )
    turns = 3 if env.players == 2 else 2
    state = env._replace(observation_space=latent_space(shape[1]))
    pair = env._replace(observation_space=spaces.Tuple((state.observation_space, action_space)))
    zeros = lambda size: jnp.broadcast_to(0.0, (1, size))  # noqa: E731
    followed = jax.eval_shape(lambda: DynamicsOutput(zeros(shape[1]), zeros(bins), zeros(turns)))
    predicted = jax.eval_shape(lambda: PredictionOutput(zeros(int(action_space.n)), zeros(bins)))
    dynamics = partial(latent_dynamics, num_outputs=bins, num_turns=turns)
    prediction = partial(latent_prediction, num_outputs=bins)
    return LatentModel(
        representation,
        resolve_network("dynamics", parts, dynamics, state, pair, followed),
        resolve_network("prediction", parts, prediction, state, state, predicted),
        support,
        action_space,
    )


def resolve_network(
    keyword: str, parts: Mapping[str, Any], default: partial[Model], env: Env | HostEnv, seen: Env | HostEnv, outputs: PyTree
) -> Model:
    """Resolve the keyword of a network on latent states.

    Args:
      default: the default network.
      env: with the space for which the network is made; ``seen`` has that of its inputs.
      outputs: the shapes that it must give for a batch of one.
    """
    part = parts[keyword]
    arguments: Mapping[str, Any] = part if isinstance(part, Mapping) else {}
    resolved = resolve_model(None if part is arguments else part, partial(default, **arguments), env, name=keyword)
    if is_recurrent(resolved):
        raise TypeError(f"{keyword}={show(part)} must be memoryless (initial_carry gives ())")
    check_statistics("MuZero", resolved, keyword)
    given = model_output(part, resolved, seen, name=keyword)
    if not same_shapes(given, outputs):
        raise TypeError(
            f"{keyword}={show(part)} must give {show_shapes(outputs)}, as "
            f"jaxrl.models.{default.func.__name__} does; for a batch of one it gives {show_shapes(given)}"
        )
    return resolved


def imagine(latent: LatentModel, params: LatentParams, gamma: Array, key: Key, state: Array, action: Array) -> Any:
    """Implement ``tree_search.Expand`` by the learned model; a position is a latent state f32[d]."""
    output = latent.step(params, state[None], action[None])
    after, decode = latent.predict(params, output.state), latent.support.decode
    node = Node(after.logits[0], decode(after.value)[0])
    return output.state[0], decode(output.reward)[0], gamma * turn_values(output.turn)[0], node
