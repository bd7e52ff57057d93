"""Models made of flax modules (linen or nnx), and of other models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from gymnasium import spaces

from jaxrl.models.initialisers import drawn_at_once
from jaxrl.rollout.autoreset import expand_mask
from jaxrl.rollout.outputs import split_variables
from jaxrl.settings.loadable import component
from jaxrl.spaces.entries import AGENT_KEY
from jaxrl.types import Array, Key, Model, PyTree, StepInput, Variables

Forward = Callable[[PyTree, PyTree, StepInput, Key | None], tuple[PyTree, Any]]
"""One step of a module: (params, carry, inputs, key) -> (carry, outputs)."""


@component("model", home="jaxrl.models")
def from_linen(
    module: nn.Module,
    *,
    initial_carry: Callable[[int], PyTree] | None = None,
    rngs: Sequence[str] = ("dropout", "noise"),
    statistics: Sequence[str] = (),
) -> Model:
    """Return the ``Model`` of a linen module.

    Args:
      module: maps a ``StepInput``, [B] or [T, B], to the outputs. With ``initial_carry``, it maps (carry, inputs [B]) to (carry,
        outputs), and the carry is reset automatically where ``is_first`` is true.
      initial_carry: batch_size -> the carry at the start of an episode, leaves [B, ...]; None for a module without memory.
      rngs: names of the module's rng streams. They exist only when the model is given a key, which ``self.has_rng("dropout")``
        can check.
      statistics: names of the module's collections of variables that learning changes, such as ("batch_stats",) of
        ``flax.linen.BatchNorm``. Learning then calls the module with two further keywords: ``valid``, bool[B], for the rows that
        count, and ``axis_name``. Acting calls it without them. Excludes ``initial_carry``.

    Raises:
      TypeError: ``module`` is not a linen module, takes an observation in place of a ``StepInput``, or has variables other than
        parameters and ``statistics``.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module={module!r} must be an instance of a flax.linen.Module; use from_nnx for modules of flax.nnx")
    if statistics and initial_carry is not None:
        raise TypeError(f"statistics={statistics!r} and initial_carry are mutually exclusive: leave one out")

    def streams(key: Key | None) -> dict[str, Key] | None:
        return None if key is None else {name: jax.random.fold_in(key, i) for i, name in enumerate(rngs)}

    def forward(variables: PyTree, carry: PyTree, inputs: StepInput, key: Key | None) -> tuple[PyTree, Any]:
        params, learnt = split_variables(variables)
        if initial_carry is None:
            return carry, module.apply({**params, **learnt} if statistics else params, inputs, rngs=streams(key))
        carry, outputs = module.apply(params, carry, inputs, rngs=streams(key))
        return carry, outputs

    def train(
        variables: Variables, inputs: StepInput, /, valid: Array, key: Key | None = None, axis_name: str | None = None
    ) -> tuple[Any, PyTree]:
        rows: dict[str, Any] = {"valid": valid, "axis_name": axis_name}
        found = {**variables.params, **variables.statistics}
        outputs, learnt = module.apply(found, inputs, **rows, rngs=streams(key), mutable=list(statistics))
        return outputs, dict(learnt)

    def init(key: Key, inputs: StepInput) -> PyTree:
        before = () if initial_carry is None else (initial_carry(inputs.is_first.shape[0]),)
        variables = _called(module, partial(module.init, key, *before), inputs)
        _only_parameters(type(module).__name__, set(variables) - {"params", *statistics}, "statistics=('batch_stats',)")
        if not statistics:
            return drawn_at_once(key, variables)
        if lacking := [name for name in statistics if name not in variables]:
            raise TypeError(f"statistics={statistics!r}: {type(module).__name__} has no variables {', '.join(lacking)}")
        learnt = {name: variables[name] for name in statistics}
        return Variables(drawn_at_once(key, {"params": variables.get("params", {})}), learnt)

    model = _model(init, forward, initial_carry)
    return model._replace(train=train) if statistics else model


@component("model", home="jaxrl.models")
def from_nnx(make: Callable[[nnx.Rngs], nnx.Module], *, initial_carry: Callable[[int], PyTree] | None = None) -> Model:
    """Return the ``Model`` of a flax.nnx module. Its parameters are a plain dictionary.

    Args:
      make: function of ``nnx.Rngs`` that returns the module; its class, if it has no other arguments. The module is called as in
        ``from_linen``. Modules with ``deterministic``, such as dropout, are active only when the model is given a key; a module
        that draws by itself draws the same without one.
      initial_carry: batch_size -> the carry at the start of an episode, leaves [B, ...]; None for a module without memory.

    Raises:
      TypeError: ``make`` does not return an nnx module, or its module takes an observation in place of a ``StepInput``, or has
        variables other than parameters and rng streams.
    """
    if isinstance(make, nnx.Module) or not callable(make):
        shown = type(make).__name__ if isinstance(make, nnx.Module) else repr(make)
        raise TypeError(f"make={shown} must be a function of nnx.Rngs that returns a module: lambda rngs: Net(4, rngs=rngs)")

    def parts(key: Key) -> Any:
        module = make(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise TypeError(f"make={make!r} returns a {type(module).__name__}, but must return a flax.nnx.Module")
        split: Any = nnx.split(module, nnx.Param, nnx.RngState, ...)
        graph, params, streams, rest = split
        kept = {type(variable).__name__ for _, variable in nnx.to_flat_state(rest)}
        _only_parameters(type(module).__name__, kept)
        return graph, params, streams

    graph, like, streams = nnx.eval_shape(lambda: parts(jax.random.key(0)))
    like, streams = nnx.to_flat_state(like), nnx.to_flat_state(streams)

    def init(key: Key, inputs: StepInput) -> PyTree:
        return drawn_at_once(key, _text_keys(nnx.to_pure_dict(parts(key)[1])))

    def module_of(params: PyTree, key: Key | None) -> Any:
        """Build the module with these parameters. With a key, each rng stream starts from a separate key."""
        state = [(path, variable.replace(_at(params, path))) for path, variable in like]
        seeds = jax.random.key(0) if key is None else key
        for i, (path, variable) in enumerate(streams):
            is_key = isinstance(variable, nnx.RngKey)
            state.append((path, variable.replace(jax.random.fold_in(seeds, i) if is_key else jnp.zeros((), jnp.uint32))))
        module = nnx.merge(graph, nnx.from_flat_state(state))
        if key is None:
            module.set_attributes(deterministic=True, raise_if_not_found=False)
        return module

    def forward(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None) -> tuple[PyTree, Any]:
        module = module_of(params, key)
        if initial_carry is None:
            return carry, _called(module, module, inputs)
        carry, outputs = _called(module, partial(module, carry), inputs)
        return carry, outputs

    return _model(init, forward, initial_carry)


def _called(module: Any, call: Callable[[Any], Any], inputs: StepInput) -> Any:
    """Return ``call(inputs)``; explain the failure if ``call`` accepts the observation alone."""
    try:
        return call(inputs)
    except Exception as error:
        if _runs(call, inputs.obs):
            raise TypeError(
                f"{type(module).__name__} is called with a StepInput, but takes an observation: use inputs.obs in its __call__, "
                "as in x = nn.relu(self.layer(inputs.obs))"
            ) from error
        raise


def _runs(call: Callable[[Any], Any], argument: Any) -> bool:
    try:
        call(argument)
    except Exception:
        return False
    return True


def _model(init: Callable[[Key, StepInput], PyTree], forward: Forward, initial_carry: Callable[[int], PyTree] | None) -> Model:
    """Build the ``Model`` of one step of a module, and reset its carry where ``is_first`` is true."""

    def apply(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
        if initial_carry is not None:
            fresh = initial_carry(inputs.is_first.shape[0])
            carry = jax.tree.map(lambda new, old: jnp.where(expand_mask(inputs.is_first, old), new, old), fresh, carry)
        return forward(params, carry, inputs, key)

    def unroll(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
        keys = None if key is None else jax.random.split(key, inputs.is_first.shape[0])
        return jax.lax.scan(lambda carry, row: apply(params, carry, *row), carry, (inputs, keys))

    if initial_carry is None:
        return Model(init, apply, apply, lambda batch_size: ())
    return Model(init, apply, unroll, initial_carry)


def _only_parameters(name: str, others: set[str], argument: str = "from_linen with statistics=('batch_stats',)") -> None:
    if others:
        raise TypeError(
            f"{name} has {', '.join(sorted(others))} in addition to its parameters, but only parameters, a carry and declared "
            f"statistics can change: use layer instead of batch normalisation, or {argument}"
        )


def _text_keys(tree: Any) -> Any:
    """Convert keys to text: the integer keys of lists of layers neither sort with text nor go into a checkpoint."""
    return {str(name): _text_keys(part) for name, part in tree.items()} if isinstance(tree, dict) else tree


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        tree = tree[str(name)]
    return tree


# ------------------------------------------------------------------------------------------------------------- several agents


@component("model", home="jaxrl.models")
def per_agent(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    network: Callable[[spaces.Space, spaces.Space], Model],
    groups: Sequence[int] | None = None,
) -> Model:
    """Build a network with separate parameters for each group of agents, leaves [G, ...].

    All groups compute all rows, and each row takes the outputs of its agent's group. So rows may come in any order, and each
    costs G times as much as with shared parameters. Observations are a Dict with an ``agent_id``, which the wrapper of that name
    adds; those of a critic may be a pair of such an observation and an action.

    Args:
      network: function of both spaces that returns the model of a group, such as ``actor_critic``.
      groups: the group of each agent, from 0; default: each agent is a group. With (0, 0, 1) the first two share parameters.

    Raises:
      ValueError: observations have no ``agent_id``, or there are not as many groups as agents.
      TypeError: the network learns statistics.
    """
    of_agent = _checked(observation_space, groups)
    model, number = network(observation_space, action_space), max(of_agent) + 1
    if model.train is not None:
        raise TypeError("per_agent takes a network of parameters alone, and this one learns statistics: leave batch_renorm out")

    def select(group: Array, found: PyTree) -> PyTree:
        """Return the rows of each agent's group, given those of all groups, [G, ...]."""

        def of_leaf(x: Array) -> Array:
            chosen = x[0]
            for i in range(1, number):
                chosen = jnp.where(expand_mask(group == i, x[i]), x[i], chosen)
            return chosen

        return jax.tree.map(of_leaf, found)

    def init(key: Key, inputs: StepInput) -> PyTree:
        return jax.vmap(model.init, in_axes=(0, None))(jax.random.split(key, number), inputs)

    def of_all(function: Any) -> Any:
        def called(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
            run = lambda params: function(params, carry, inputs, key=key)  # noqa: E731
            carries, outputs = jax.vmap(run)(params)
            obs = inputs.obs[0] if isinstance(inputs.obs, tuple) else inputs.obs
            group = jnp.array(of_agent)[obs[AGENT_KEY]]
            return select(group if group.ndim == 1 else group[-1], carries), select(group, outputs)

        return called

    return Model(init, of_all(model.apply), of_all(model.unroll), model.initial_carry)


def _checked(space: spaces.Space, groups: Sequence[int] | None) -> tuple[int, ...]:
    """Return the group of each agent."""
    agents = space.spaces.get(AGENT_KEY) if isinstance(space, spaces.Dict) else None
    if not isinstance(agents, spaces.Discrete):
        raise ValueError(
            f"per_agent needs observations that are a Dict with {AGENT_KEY!r}, and observation_space is {space}: wrap the "
            "environment, as in 'jaxrl:Spread|agent_id'"
        )
    number = int(agents.n)
    chosen = tuple(range(number)) if groups is None else tuple(groups)
    if len(chosen) != number:
        raise ValueError(f"groups={chosen} has {len(chosen)} entries, and there are {number} agents: give the group of each")
    if {*chosen} != {*range(max(chosen) + 1)}:
        raise ValueError(f"groups={chosen} must be numbers from 0 without gaps, such as {tuple(i % 2 for i in range(number))}")
    return chosen
