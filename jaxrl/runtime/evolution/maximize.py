"""``maximize``: evolution of the parameters of any function, which runs in this process, in others, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl.evolution.gradient import descent_gradient
from jaxrl.evolution.noise import Noise
from jaxrl.runtime.evolution.settings import SearchSettings
from jaxrl.runtime.remote.cluster import ENGINES, Cluster, open_cluster
from jaxrl.runtime.remote.parallel_map import SharedCalls
from jaxrl.settings.aliases import shortened, unknown
from jaxrl.settings.validation import Range, check_count, check_number
from jaxrl.types import Array, PyTree

Fitness = Callable[[PyTree, int], float]
"""(parameters, seed) -> fitness. All members of a generation have the same seed."""


MOST_RESTARTS = 1_000_000
"""Restarts of a process; ``retries`` limits them for each evaluation."""


class SearchState(NamedTuple):
    """State of a search: with it and the same settings, a search continues bit for bit."""

    theta: PyTree
    """Mean of the population."""
    opt_state: PyTree
    version: Array
    """i32[]: number of generations so far."""


class Generation(NamedTuple):
    """Report of one generation."""

    number: int
    """Counted from 1."""
    fitness: np.ndarray
    """f32[members]"""
    state: SearchState
    """State after it."""


class Result(NamedTuple):
    """Result of ``maximize``."""

    theta: PyTree
    """Mean of the last population, NumPy arrays."""
    fitness: np.ndarray
    """f32[generations, members]"""
    state: SearchState
    """Argument with which another call continues."""


def maximize(
    function: Fitness,
    theta: PyTree,
    *,
    generations: int,
    members: int = 64,
    sigma: float = 0.05,
    learning_rate: float = 0.03,
    weight_decay: float = 0.0,
    sigma_decay: float = 1.0,
    noise: Any = "normal",
    strategy: Any = "openai",
    optimizer: optax.GradientTransformation | None = None,
    seed: int = 0,
    num_workers: int = 0,
    engine: str = "local",
    cluster: Cluster | None = None,
    retries: int = 3,
    timeout: float | None = None,
    on_generation: Callable[[Generation], object] | None = None,
    state: SearchState | None = None,
) -> Result:
    """Maximise a function of parameters by evolution strategies (Salimans et al. 2017; Mania et al. 2018).

    Args:
      function: (parameters, seed) -> fitness, one number; NaN counts as the lowest. It need not use JAX: parameters are NumPy
        arrays. All members of a generation get the same seed.
      theta: parameters to begin with, a pytree of arrays.
      generations: number of generations.
      members: members of a generation, an even number: pairs with opposite noise.
      sigma: standard deviation of the members' parameters.
      learning_rate: step size of Adam, or of gradient ascent with strategy "ars".
      weight_decay: weight of ½‖θ‖² in the loss.
      sigma_decay: factor on ``sigma`` after each generation.
      noise: ``NormalNoise()`` or ``SignNoise()`` of ``jaxrl.options``, or its name.
      strategy: ``OpenAI()`` or ``ARS()`` of ``jaxrl.options``, its name, or a mapping of its fields.
      optimizer: optax transformation in place of Adam or gradient descent, which then sets the step size.
      seed: seed of the search.
      num_workers: processes that evaluate the function; 0: this process.
      engine: where they are: "local" or "ray", as in ``jaxrl.remote.open``.
      cluster: open cluster to use instead.
      retries: number of times that an evaluation is repeated if its process is lost or takes longer than ``timeout``.
      timeout: seconds that an evaluation may take in another process; None: any time. The start of a process does not count.
      on_generation: called after each generation.
      state: ``Result.state`` of another call, to continue it.

    Returns:
      The result. It does not depend on the number of workers, nor on which of them were lost.

    Raises:
      TypeError, ValueError: an argument is not allowed.
      RemoteError: the function raised an exception in another process.
      TimeoutError, WorkerLost: an evaluation was lost more than ``retries`` times, or a process could not be started.
    """
    members, generations = check_count("members", members), check_count("generations", generations)
    if members % 2:
        raise ValueError(f"members={members} must be even: members are pairs with opposite noise")
    given = {"sigma": sigma, "learning_rate": learning_rate, "weight_decay": weight_decay, "sigma_decay": sigma_decay}
    settings = SearchSettings.read({**given, "noise": noise, "strategy": strategy, "seed": seed})
    if not callable(function):
        raise TypeError(f"maximize({shortened(function)}, …) must begin with a function of (parameters, seed)")
    theta = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), theta)
    if not jax.tree.leaves(theta):
        raise ValueError("theta has no arrays: give the parameters to begin with")
    chosen = settings.optimizer if optimizer is None else optimizer
    if state is None:
        state = SearchState(theta, chosen.init(theta), jnp.zeros((), jnp.int32))

    @jax.jit
    def learn(state: SearchState, fitness: Array) -> SearchState:
        key, scale = settings.key_of(state.version), settings.sigma_of(state.version.astype(jnp.float32))
        weights, decay = settings.strategy.weights(fitness), jnp.float32(settings.weight_decay)
        gradient = descent_gradient(settings.noise, key, scale, weights, state.theta, decay)
        updates, opt_state = chosen.update(gradient, state.opt_state, state.theta)
        return SearchState(optax.apply_updates(state.theta, updates), opt_state, state.version + 1)

    history = []
    key_of = lambda version: np.asarray(jax.random.key_data(settings.key_of(version)))  # noqa: E731
    first = jax.tree.map(np.asarray, state.theta), key_of(0)
    with Evaluations(function, settings.noise, num_workers, engine, cluster, retries, timeout, first) as evaluations:
        for _ in range(generations):
            version = int(state.version)
            key, mean = key_of(version), jax.tree.map(np.asarray, state.theta)
            fitness = evaluations.of(mean, key, settings.sigma_of(version), members, version)
            state = learn(state, jnp.asarray(fitness))
            history.append(fitness)
            if on_generation is not None:
                on_generation(Generation(version + 1, fitness, state))
    return Result(jax.tree.map(np.asarray, state.theta), np.stack(history), state)


class Evaluator:
    """Evaluates members, in whichever process."""

    def __init__(self, function: Fitness, noise: Noise, first: tuple[PyTree, np.ndarray] | None = None) -> None:
        """``first``: parameters and the data of a key, for which to compile now, so that the first evaluation takes no longer."""
        self.function, self._member = function, jax.jit(noise.member)
        if first is not None:
            self.member(*first, 1.0, 0)

    def member(self, theta: PyTree, key_data: np.ndarray, sigma: float, member: int) -> PyTree:
        """Return the parameters of a member, as NumPy arrays."""
        key = jax.random.wrap_key_data(jnp.asarray(key_data))
        return jax.tree.map(np.asarray, self._member(key, jnp.int32(member), theta, jnp.float32(sigma)))

    def evaluate(self, theta: PyTree, key_data: np.ndarray, sigma: float, member: int, seed: int) -> float:
        fitness: Any = self.function(self.member(theta, key_data, sigma, member), seed)
        if np.shape(fitness) != () or np.asarray(fitness).dtype.kind not in "fiub":
            raise TypeError(f"the function must return one number, its fitness, not {shortened(fitness)}")
        return float(fitness)


def check_place(num_workers: int, engine: str, cluster: Cluster | None, timeout: float | None) -> None:
    """Raise TypeError or ValueError if these settings are not allowed, or have no effect."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if timeout is not None:
        check_number("timeout", timeout, Range(0, open_low=True))
    if cluster is not None and engine != "local":
        raise ValueError(f"engine={engine!r} has no effect beside cluster=…, which has its own engine: leave it out")
    if not num_workers and cluster is None and (engine, timeout) != ("local", None):
        raise ValueError(
            "engine and timeout are for evaluations in other processes: give a number of them, num_workers=2, or leave these out"
        )


class Evaluations:
    """Evaluations of whole generations, in this process or in several."""

    def __init__(
        self,
        function: Fitness,
        noise: Noise,
        num_workers: int,
        engine: str,
        cluster: Cluster | None,
        retries: int,
        timeout: float | None,
        first: tuple[PyTree, np.ndarray],
    ) -> None:
        """``first``: see ``Evaluator``."""
        self.retries, self.objects, self.own = check_count("retries", retries, at_least=0), list[Any](), None
        self.here = Evaluator(function, noise)
        number = check_count("num_workers", num_workers, at_least=0)
        check_place(number, engine, cluster, timeout)
        if cluster is not None and not number:
            number = int(cluster.resources.cpus)
        if not number:
            return
        if cluster is None:
            self.own = cluster = open_cluster(engine, cpus=number if engine == "local" else None)
        try:
            for _ in range(number):
                self.objects.append(cluster.start(Evaluator, function, noise, first, restarts=MOST_RESTARTS, timeout=timeout))
        except BaseException:
            self.close()
            raise
        self.cluster = cluster

    def of(self, theta: PyTree, key_data: np.ndarray, sigma: float, members: int, seed: int) -> np.ndarray:
        """Return the fitness of all members, f32[members]."""
        if not self.objects:
            found = [self.here.evaluate(theta, key_data, sigma, member, seed) for member in range(members)]
            return np.array(found, np.float32)
        sent = self.cluster.put(theta)
        calls = SharedCalls(
            self.objects, [("evaluate", sent, key_data, sigma, member, seed) for member in range(members)], self.retries
        )
        try:
            return np.array([each.result() for each in calls.futures], np.float32)
        except BaseException:
            calls.drop()
            raise

    def close(self) -> None:
        for each in self.objects:
            each.close()
        if self.own is not None:
            self.own.close()

    def __enter__(self) -> Evaluations:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
