"""A module of flax, linen or nnx, as a ``Model``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl.models.initialisers import drawn_at_once
from jaxrl.rollout.autoreset import expand_mask
from jaxrl.types import Key, Model, PyTree, StepInput

Forward = Callable[[PyTree, PyTree, StepInput, Key | None], tuple[PyTree, Any]]
"""One step of a module: (params, carry, inputs, key) -> (carry, outputs)."""


def from_linen(
    module: nn.Module, *, initial_carry: Callable[[int], PyTree] | None = None, rngs: Sequence[str] = ("dropout", "noise")
) -> Model:
    """The ``Model`` of a linen module.

    Args:
      module: called with a ``StepInput``, [B] or [T, B], it gives the outputs. With ``initial_carry``, called with (carry,
        inputs [B]) it gives (carry, outputs); the carry restarts by itself where ``is_first`` is true.
      initial_carry: batch_size -> the carry at the start of an episode, leaves [B, ...]; None for a module without memory.
      rngs: the streams that the module draws from where the model is given a key; without one it has none, as
        ``self.has_rng("dropout")`` tells it.

    Raises:
      TypeError: ``module`` is not a linen module, takes an observation in place of a ``StepInput``, or keeps other variables than
        parameters (batch statistics, say).
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module={module!r} must be an instance of a flax.linen.Module; from_nnx takes those of flax.nnx")

    def forward(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None) -> tuple[PyTree, Any]:
        drawn = None if key is None else {name: jax.random.fold_in(key, i) for i, name in enumerate(rngs)}
        if initial_carry is None:
            return carry, module.apply(params, inputs, rngs=drawn)
        carry, outputs = module.apply(params, carry, inputs, rngs=drawn)
        return carry, outputs

    def init(key: Key, inputs: StepInput) -> PyTree:
        before = () if initial_carry is None else (initial_carry(inputs.is_first.shape[0]),)
        variables = _called(module, partial(module.init, key, *before), inputs)
        _only_parameters(type(module).__name__, set(variables) - {"params"})
        return drawn_at_once(key, variables)

    return _model(init, forward, initial_carry)


def from_nnx(make: Callable[[nnx.Rngs], nnx.Module], *, initial_carry: Callable[[int], PyTree] | None = None) -> Model:
    """The ``Model`` of a module of flax.nnx; its parameters are a plain dictionary.

    Args:
      make: makes the module from ``nnx.Rngs``, as its class does if these are its only argument. The module is called as
        ``from_linen`` has it. It draws (dropout, noise) only where the model is given a key.
      initial_carry: batch_size -> the carry at the start of an episode, leaves [B, ...]; None for a module without memory.

    Raises:
      TypeError: ``make`` does not give an nnx module, or its module takes an observation in place of a ``StepInput``, or keeps
        other variables than parameters and streams of random numbers.
    """
    if isinstance(make, nnx.Module) or not callable(make):
        given = type(make).__name__ if isinstance(make, nnx.Module) else repr(make)
        raise TypeError(f"make={given} must be a function of nnx.Rngs that gives a module: lambda rngs: Net(4, rngs=rngs)")

    def parts(key: Key) -> Any:
        module = make(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise TypeError(f"make={make!r} gives a {type(module).__name__}, and must give a flax.nnx.Module")
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
        """The module with these parameters; with a key, each of its streams begins with one of its own."""
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
    """``call(inputs)``, with an explanation where the observation alone is what the module can take."""
    try:
        return call(inputs)
    except Exception as error:
        if _runs(call, inputs.obs):
            raise TypeError(
                f"{type(module).__name__} is called with a StepInput, and takes an observation: use inputs.obs in its __call__, "
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
    """Of one step of a module, which need not look at ``is_first`` itself."""

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


def _only_parameters(name: str, others: set[str]) -> None:
    if others:
        raise TypeError(
            f"{name} keeps {', '.join(sorted(others))} beside its parameters, and nothing of a Model changes but these and its "
            "carry: use layer instead of batch normalisation, say"
        )


def _text_keys(tree: Any) -> Any:
    """Lists of layers have whole numbers for keys, which neither sort beside words nor go into a checkpoint."""
    return {str(name): _text_keys(part) for name, part in tree.items()} if isinstance(tree, dict) else tree


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        tree = tree[str(name)]
    return tree
