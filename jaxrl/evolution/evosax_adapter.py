"""Algorithms of the package evosax as strategies of ES: covariance matrix adaptation, natural evolution, genetic algorithms.

Unlike the noise of ``jaxrl.evolution.noise``, their populations are whole arrays, f32[N, D].
"""

from __future__ import annotations

import inspect
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl.evolution.shaping import lowest_for_nan
from jaxrl.settings.aliases import hint_or, nearest
from jaxrl.settings.options import Option, option
from jaxrl.settings.packages import import_package
from jaxrl.settings.validation import Numbers
from jaxrl.types import Array, Key, PyTree
from jaxrl.xla.fast_random import fold_in, normal

FULL_COVARIANCE = ("CMA_ES", "MA_ES", "xNES", "iAMaLGaM_Full")
"""Algorithms with a matrix of D × D numbers, which most of them decompose in each generation."""
MOST_PARAMETERS = 2000
"""Largest D for these."""
MOST_BYTES = 2**31
"""Largest size of a population."""
OF_FIRST, OF_INIT, OF_ASK, OF_TELL = range(1, 5)
"""Random streams of a key: of the first members around the initial parameters, and of evosax's methods."""


@option("evosax")
class Evosax(Option):
    """Let an algorithm of the package evosax move the population; needs ``pip install "jaxrl[evolution]"``.

    Those with a mean play the mean in evaluations, and the others (from ``DifferentialEvolution`` on) their best member.
    ``sigma`` is the initial or scheduled standard deviation, and algorithms that step by gradients take the optimiser with
    ``learning_rate`` and ``weight_decay``; for other algorithms these have no effect.
    """

    algorithm: Literal[
        "CMA_ES",
        "Sep_CMA_ES",
        "LM_MA_ES",
        "MA_ES",
        "Rm_ES",
        "CR_FM_NES",
        "SNES",
        "xNES",
        "PGPE",
        "Open_ES",
        "ARS",
        "ASEBO",
        "GuidedES",
        "ESMC",
        "SimpleES",
        "DES",
        "LES",
        "EvoTF_ES",
        "iAMaLGaM_Full",
        "iAMaLGaM_Univariate",
        "GradientlessDescent",
        "HillClimbing",
        "SimulatedAnnealing",
        "DifferentialEvolution",
        "PSO",
        "SimpleGA",
        "MR15_GA",
        "SAMR_GA",
        "GESMR_GA",
        "LGA",
        "DiffusionEvolution",
    ] = "CMA_ES"
    """Name in evosax."""
    settings: Numbers = ()
    """Its numbers under their names in evosax: arguments of its constructor, ``elite_ratio``, and fields of its ``Params``."""


class EvosaxPopulation:
    """A population of an evosax algorithm. Its state takes the place of the optimiser's state in a learner."""

    def __init__(
        self,
        strategy: Evosax,
        members: int,
        params: PyTree,
        sigma: Array,
        sigma_decay: Array,
        optimizer: optax.GradientTransformation,
    ) -> None:
        """
        Args:
          params: parameters of the initial mean.
          sigma: initial standard deviation, f32[].
          sigma_decay: factor on it after each generation, where the algorithm has a schedule of it.
          optimizer: used where the algorithm steps by gradients.

        Raises:
          ModuleNotFoundError: evosax is not installed.
          ValueError: the algorithm has no setting of this name.
        """
        self.members, self.sigma = members, sigma
        self.mean, self.unravel = ravel_pytree(params)
        needed_by = f"strategy=Evosax({strategy.algorithm!r})"
        algorithms = import_package("evosax.algorithms", needed_by, extra="evolution").algorithms
        kind, wanted = algorithms[strategy.algorithm], dict[str, float](strategy.settings)  # type: ignore[arg-type]
        accepted = set(inspect.signature(kind.__init__).parameters)
        offered = {
            "optimizer": optimizer,
            "std_schedule": lambda generation: sigma * sigma_decay**generation,
            "metrics_fn": lambda *_: {},  # the default ones hold whole solutions
        }
        arguments: dict[str, Any] = {name: value for name, value in offered.items() if name in accepted}
        numbers = accepted - {"self", "population_size", "solution", "fitness_shaping_fn", *offered}
        arguments |= {name: _as_argument(wanted.pop(name)) for name in numbers & set(wanted)}
        with jax.ensure_compile_time_eval():  # some compute sizes from D by JAX
            self.algorithm = kind(population_size=members, solution=jnp.zeros(self.mean.shape), **arguments)
            self.algorithm.elite_ratio = wanted.pop("elite_ratio", self.algorithm.elite_ratio)
            defaults = self.algorithm.default_params
        fields = {
            name: value
            for name, value in vars(defaults).items()
            if isinstance(value, float | int | jax.Array) and not jnp.ndim(value)
        }
        if unknown := sorted(set(wanted) - set(fields)):
            names = sorted({*fields, *numbers, "elite_ratio"})
            hint = hint_or(nearest(unknown[0], names), f"It has: {', '.join(names)}.")
            raise ValueError(f"evosax's {strategy.algorithm} has no setting {unknown[0]!r}.{hint}")
        initial = {"std_init": sigma} if "std_init" in fields else {}
        changed = {name: jnp.asarray(value, jnp.asarray(fields[name]).dtype) for name, value in wanted.items()}
        self.params = defaults.replace(**{**initial, **changed})
        self.has_mean = hasattr(self.algorithm, "get_mean")

    def init(self, key: Key) -> PyTree:
        """Return the algorithm's first state."""
        key = fold_in(key, OF_INIT)
        if self.has_mean:
            return strong(self._call("init", key, self.mean, self.params))
        return strong(self._call("init", key, jnp.tile(self.mean, (self.members, 1)), jnp.zeros(self.members), self.params))

    def ask(self, key: Key, state: PyTree, version: Array) -> tuple[Array, PyTree]:
        """Draw the members of a generation, f32[N, D], and return the state with which to ``tell`` about them.

        An algorithm without a mean begins with members around the initial parameters.
        """
        population, state = self._call("ask", fold_in(key, OF_ASK), state, self.params)
        if not self.has_mean:
            first = self.mean + self.sigma * normal(fold_in(key, OF_FIRST), population.shape)
            population = jnp.where(version == 0, first, population)
        return population, state

    def tell(self, key: Key, state: PyTree, version: Array, population: Array, fitness: Array) -> tuple[PyTree, PyTree]:
        """Return the next state, and the parameters to evaluate.

        Args:
          state: with ``population``, from ``ask``.
          fitness: f32[N]; more is better. NaN counts as the lowest.
        """
        key, cost = fold_in(key, OF_TELL), -lowest_for_nan(fitness)
        told, _ = self._call("tell", key, population, cost, state, self.params)
        if self.has_mean:
            return _like(told, state), self.unravel(self.algorithm.get_mean(told))
        first = self._call("init", key, population, cost, self.params)
        new = jax.tree.map(lambda first, later: jnp.where(version == 0, first, later), _like(first, state), _like(told, state))
        return new, self.unravel(self.algorithm.get_best_solution(new))

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method, traced with this program: evosax compiles it anew for each instance, and would keep the instance."""
        return inspect.unwrap(getattr(type(self.algorithm), method))(self.algorithm, *arguments)


def check_size(strategy: Evosax, members: int, size: int) -> None:
    """Raise ValueError for a population of D = ``size`` parameters that is too large."""
    name = f"strategy=Evosax({strategy.algorithm!r})"
    if strategy.algorithm in FULL_COVARIANCE and size > MOST_PARAMETERS:
        raise ValueError(
            f"{name} keeps {size:,} × {size:,} numbers for a network of {size:,} parameters, and at most {MOST_PARAMETERS:,} "
            "parameters are allowed: use 'Sep_CMA_ES' or 'LM_MA_ES', or a smaller network"
        )
    if (needed := 4 * members * size) > MOST_BYTES:
        raise ValueError(
            f"members={members} of {size:,} parameters take {needed / 2**30:.1f} GiB with {name}, and at most "
            f"{MOST_BYTES / 2**30:g} GiB are allowed: use fewer members, or strategy='openai', which draws members as needed"
        )


def strong(tree: PyTree) -> PyTree:
    """Return arrays whose types are not weak, so that a program is compiled once."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=jnp.asarray(x).dtype), tree)


def _like(new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda new, old: jnp.asarray(new, dtype=jnp.asarray(old).dtype), new, old)


def _as_argument(number: float) -> float | int:
    return int(number) if number == int(number) else number
