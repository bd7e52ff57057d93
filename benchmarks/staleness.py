"""Corrections for members of older versions: learning on Pendulum when half of each batch is one to four versions old.

Each version tests as many members as a batch has. Half of them are learnt from at once, and an eighth each after one, two, three
and four further versions, as rewards that arrive late. "fresh" learns from all of them at once.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec

import jaxrl
from benchmarks.markdown import origin, table
from benchmarks.record import write_result
from benchmarks.speed import say
from jaxrl.evolution.gradient import CORRECTIONS, VersionFitness, stale_gradient
from jaxrl.runtime.evolution.settings import EvolutionSettings
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.training import evaluate_pure
from jaxrl.types import Array, Policy

FRESH = "fresh"
MODES = (FRESH, *CORRECTIONS)
DEFAULT = EvolutionSettings().staleness
MEMBERS, EPISODES, AGES = 64, 8, 4
SETTINGS = EvolutionSettings(sigma=0.3, learning_rate=0.1)
MOST_LOSS = 0.1
"""Allowed loss of the default correction: a share of what fresh batches gain over the first version, as a mean over versions."""


def measure(seeds: int, versions: int, out: Path) -> dict[str, Any]:
    """Measure all corrections, and write ``out/staleness.json``."""
    request_cpu_devices()
    agent = jaxrl.make_es("Pendulum-v1", normalize_observations=False, model={"hidden_sizes": (32, 32)})
    curves = {}
    for mode in MODES:
        curves[mode] = np.rint(learn(agent, mode, seeds, versions)).astype(int).tolist()
        say(f"{mode}: mean return {np.mean(curves[mode]):.0f} over all versions")
    settings = SETTINGS.as_plain() | {"members": MEMBERS, "episodes": EPISODES}
    return write_result(out, "staleness", settings=settings, returns=curves)


def learn(agent: Any, mode: str, seeds: int, versions: int) -> np.ndarray:
    """Return the mean return of the members of each version, [seeds, versions]."""
    params = [agent.init(jax.random.key(seed)).learner.params for seed in range(seeds)]
    unravel = ravel_pytree(params[0])[1]
    theta = jnp.stack([ravel_pytree(each)[0] for each in params])
    opt_state = jax.vmap(SETTINGS.optimizer.init)(theta)
    fitness_of = jax.jit(partial(over_devices, partial(fitness, agent, unravel)))
    step = jax.jit(jax.vmap(lambda up, state, theta: SETTINGS.optimizer.update(-up, state, theta)))
    tested: list[list[VersionFitness]] = [[] for _ in range(seeds)]
    """All members of the last versions, by seed."""
    curve = []
    for version in range(versions):
        keys = jnp.stack([jax.random.fold_in(jax.random.key(seed), version) for seed in range(seeds)])
        found = fitness_of(theta, keys)
        curve.append(np.asarray(found.mean(1)))
        ascents = []
        for seed in range(seeds):
            own = VersionFitness(keys[seed], SETTINGS.sigma, theta[seed], 0, jnp.arange(MEMBERS), found[seed])
            tested[seed] = [own, *(old._replace(age=old.age + 1) for old in tested[seed][:AGES])]
            batch = [own] if mode == FRESH else [part(each) for each in tested[seed]]
            correction = DEFAULT if mode == FRESH else mode
            of = (SETTINGS.noise, SETTINGS.strategy.weights, theta[seed], SETTINGS.sigma)
            ascents.append(stale_gradient(correction, *of, batch)[0])
        updates, opt_state = step(jnp.stack(ascents), opt_state, theta)
        theta = optax.apply_updates(theta, updates)
    return np.stack(curve, 1)


def part(of: VersionFitness) -> VersionFitness:
    """Return the members of a version that arrive at its age."""
    each = MEMBERS // 2 // AGES
    first, last = (0, MEMBERS // 2) if of.age == 0 else (MEMBERS // 2 + (of.age - 1) * each, MEMBERS // 2 + of.age * each)
    return of._replace(member=of.member[first:last], fitness=of.fitness[first:last])


def fitness(agent: Any, unravel: Any, theta: Array, key: Array) -> Array:
    """Return the mean returns of the members of a version, f32[N], over the same episodes."""

    def of_member(member: Array) -> Array:
        noise = SETTINGS.noise.of_member(key, member, theta.size)
        policy = Policy(unravel(theta + SETTINGS.sigma * noise), (), (), jnp.zeros((), jnp.int32))
        return evaluate_pure(agent, policy, jax.random.fold_in(key, MEMBERS), EPISODES).episodic_return.mean()

    return jax.vmap(of_member)(jnp.arange(MEMBERS))


def over_devices(function: Any, theta: Array, keys: Array) -> Array:
    """Map over seeds, which are divided among the devices."""
    number = max(n for n in range(1, len(jax.devices()) + 1) if len(theta) % n == 0)
    rows = PartitionSpec("seeds")
    mapped = jax.shard_map(
        lambda *args: jax.lax.map(lambda each: function(*each), args),
        mesh=Mesh(np.array(jax.devices()[:number]), ("seeds",)),
        in_specs=(rows, rows),
        out_specs=rows,
        check_vma=False,
    )
    return mapped(theta, keys)


def draw_missing(result: dict[str, Any], path: Path) -> None:
    """Draw the mean return of the members by version, over seeds, with each correction, unless the picture is of this result."""
    from matplotlib.figure import Figure
    from PIL import Image

    if path.exists():
        with Image.open(path) as picture:
            if picture.info.get("Description") == result["date"]:
                return
    figure = Figure(figsize=(6.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for mode, returns in result["returns"].items():
        curve = np.mean(returns, 0)
        axes.plot(curve, label=mode, color="black" if mode == FRESH else None, linestyle="--" if mode == FRESH else "-")
    axes.set(xlabel="version", ylabel="mean return of members")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100, metadata={"Description": result["date"]})


def gains(result: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the mean return over all versions less that of the first version, for each correction and seed."""
    return {mode: np.array([np.mean(each) - each[0] for each in returns]) for mode, returns in result["returns"].items()}


def missed(result: dict[str, Any]) -> bool:
    """Return whether the default loses more than ``MOST_LOSS`` of what fresh batches gain, or gains less than "drop"."""
    mean = {mode: found.mean() for mode, found in gains(result).items()}
    return bool(mean[DEFAULT] < (1 - MOST_LOSS) * mean[FRESH] or mean[DEFAULT] < mean["drop"])


def staleness_report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    found, rows = gains(result), []
    for mode, each in found.items():
        last = np.mean([returns[-10:] for returns in result["returns"][mode]])
        error = each.std(ddof=1) / len(each) ** 0.5
        share = each.mean() / found[FRESH].mean()
        rows.append([f'"{mode}"' if mode != FRESH else mode, f"{each.mean():.0f} ± {error:.0f}", f"{share:.0%}", f"{last:.0f}"])
    seeds, versions = len(result["returns"][FRESH]), len(result["returns"][FRESH][0])
    lines = [
        "## Members of older versions",
        origin(result),
        table(["staleness", "gain", "of fresh batches", "last return"], rows),
        f"Pendulum, {seeds} seeds, {versions} versions with {MEMBERS} members of {EPISODES} episodes. Half of each batch is of "
        "the present version, and an eighth each of the four before. *gain*: mean return of members over all versions, less that "
        "of the first version; mean ± standard error over seeds. *last return*: mean over the last ten versions.",
        f'Requirement on the default, "{DEFAULT}": at least {1 - MOST_LOSS:.0%} of the gain of fresh batches, and not less than '
        f'"drop". Met: {"NO" if missed(result) else "yes"}.',
    ]
    return "\n\n".join(lines)
