"""Gradient steps of an optimizer. For callers, parameters are trees; how they are stored between steps is decided here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from jaxrl.optimize import OptimizerFn, is_elementwise
from jaxrl.optimize.gradients import accumulated_gradient, mean_gradient
from jaxrl.types import Array, PyTree
from jaxrl.xla.packed_parameters import MOST_PACKED, UNPACKED, Packing, packing

Logged: TypeAlias = dict[str, Array]
Loss: TypeAlias = Callable[[PyTree], tuple[Array, Logged]]
"""params -> (loss, scalars to log)."""


class Progress(NamedTuple):
    """Carry of a loop over gradient steps. Its arrays are in the layout of the ``Descent`` that made it, which reads them."""

    params: PyTree
    target_params: PyTree
    opt_state: PyTree


@dataclass(frozen=True)
class Descent:
    """Gradient steps of an optimizer on parameters of known shapes.

    For many steps, ``start`` a loop whose carry is a ``Progress``, take each ``step``, and ``finish`` with fields of a learner.
    With an optimizer that is ``elementwise``, the parameters are one vector in between, and ``opt_state`` is the state for that
    vector. Metrics of steps include ``losses/grad_norm``.
    """

    optimizer: optax.GradientTransformation
    packing: Packing
    axis_name: str | None = None
    """Device axis over which gradients are averaged."""

    def init(self, params: PyTree) -> PyTree:
        """Return the optimizer's state for new parameters."""
        return self.optimizer.init(self.packing.pack(params))

    # ---------------------------------------------------------------------------------------------------------- many steps

    def start(self, params: PyTree, opt_state: PyTree, target_params: PyTree = None) -> Progress:
        """Begin a loop. ``target_params`` are those of a target network, if there is one."""
        target = None if target_params is None else self.packing.pack(target_params)
        return Progress(self.packing.pack(params), target, opt_state)

    def params(self, progress: Progress) -> PyTree:
        return self.packing.unpack(progress.params)

    def target_params(self, progress: Progress) -> PyTree:
        return self.packing.unpack(progress.target_params)

    def finish(self, progress: Progress) -> dict[str, PyTree]:
        """Return ``params`` and ``opt_state``, and ``target_params`` if there is a target network."""
        fields = {"params": self.params(progress), "opt_state": progress.opt_state}
        return fields if progress.target_params is None else {**fields, "target_params": self.target_params(progress)}

    def step(self, loss: Loss, progress: Progress) -> tuple[Progress, Logged]:
        """Take one step along the gradient of ``loss``."""
        return self._move(*self._gradient(loss, progress.params), progress)

    def accumulated_step(
        self,
        loss: Callable[..., tuple[Array, Logged]],
        progress: Progress,
        batch: PyTree,
        valid: Array,
        num_parts: int,
        *,
        may_cut: bool = False,
    ) -> tuple[Progress, Logged]:
        """Take one step along an ``accumulated_gradient``. Arguments are those of that function."""

        def of_packed(packed: PyTree, *arguments: Any, **keywords: Any) -> tuple[Array, Logged]:
            return loss(self.packing.unpack(packed), *arguments, **keywords)

        gradient = accumulated_gradient(of_packed, progress.params, batch, valid, num_parts, self.axis_name, may_cut=may_cut)
        return self._move(*gradient, progress)

    def move_target(self, progress: Progress, step: Array) -> Progress:
        """Move the target network towards the parameters by a fraction, f32[]; with 1 it becomes a copy."""
        # where, applied to the parameters only: under vmap, a cond on the state would become a select of all of it.
        move = lambda p, t: jnp.where(step == 1.0, p, t + step * (p - t))  # noqa: E731
        return progress._replace(target_params=jax.tree.map(move, progress.params, progress.target_params))

    # ---------------------------------------------------------------------------------------------------------- single steps

    def apply(self, gradient: PyTree, params: PyTree, opt_state: PyTree) -> tuple[PyTree, PyTree]:
        """Take one step along a given gradient; return parameters and optimizer state."""
        packed = self.packing.pack(params)
        updates, opt_state = self.optimizer.update(self.packing.pack(gradient), opt_state, packed)
        return self.packing.unpack(optax.apply_updates(packed, updates)), opt_state

    def single_step(self, loss: Loss, params: PyTree, opt_state: PyTree) -> tuple[PyTree, PyTree, Logged]:
        """Take one step along the gradient of ``loss``; return parameters, optimizer state and metrics.

        Here only the gradient is packed. Packing the parameters for a whole loop pays off with many updates of small networks.
        With one update of large networks, XLA would compute for each element of a fused packed vector which leaf it belongs to.
        """
        packed = self.packing.pack(params)
        gradient, metrics = self._gradient(loss, packed)
        metrics["losses/grad_norm"] = optax.tree.norm(gradient)
        updates, opt_state = self.optimizer.update(gradient, opt_state, packed)
        return optax.apply_updates(params, self.packing.unpack(updates)), opt_state, metrics

    def _gradient(self, loss: Loss, packed: PyTree) -> tuple[PyTree, Logged]:
        return mean_gradient(lambda packed: loss(self.packing.unpack(packed)), packed, self.axis_name)

    def _move(self, gradient: PyTree, metrics: Logged, progress: Progress) -> tuple[Progress, Logged]:
        metrics["losses/grad_norm"] = optax.tree.norm(gradient)
        updates, opt_state = self.optimizer.update(gradient, progress.opt_state, progress.params)
        return progress._replace(params=optax.apply_updates(progress.params, updates), opt_state=opt_state), metrics


def descent(
    optimizer: OptimizerFn, hyperparams: Any, params: PyTree, axis_name: str | None = None, *, single_steps: bool = False
) -> Descent:
    """Return the gradient steps of an optimizer on parameters of these shapes.

    Args:
      single_steps: only ``single_step`` is used. Then large parameters are not packed.
    """
    at_most = MOST_PACKED if single_steps else None
    layout = packing(params, at_most=at_most) if is_elementwise(optimizer) else UNPACKED
    return Descent(optimizer(hyperparams), layout, axis_name)
