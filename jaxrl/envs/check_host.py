"""The part of ``check_env`` that plays host environments: arrays, NEXT_STEP rows, seeds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from gymnasium import spaces

from jaxrl.envs.validate import EnvError, abstract, explain, mismatches, outside, picture_problem, same
from jaxrl.types import HostEnv, HostEnvs, HostStep, PyTree

NUM_ENVS = 2

Say = Callable[[str], None]

SAME_STEP = (
    "the action on the row after an end changes what follows: these environments reset inside the step that ends an episode "
    "(SAME_STEP), so its last observation and the first step of the next episode are lost. An ended environment must spend the "
    "next step on the reset and ignore its action (NEXT_STEP: in gymnasium.vector, autoreset_mode=AutoresetMode.NEXT_STEP)"
)
LATE_REWARD = "the row after an end is spent on the reset (NEXT_STEP), so its reward must be 0"
UNSEEDED = "open() with the same seed gave different results: every stream must be fixed by the seed and the environment"


class Played(NamedTuple):
    """What a few steps gave."""

    seen: list[Any]
    """Copies of all that was returned."""
    late_reward: bool
    """Whether a reset row had a reward."""


def host_problems(env: HostEnv, steps: int, say: Say) -> list[str]:
    """Open two environments, twice or more often with the same seed, and step them."""
    try:
        first = _play(env, steps, say)
        # NEXT_STEP environments ignore the actions of reset rows, so other ones there must give the same.
        if not same(first.seen, _play(env, steps, say, other_after_end=True).seen):
            return [SAME_STEP if same(first.seen, _play(env, steps, say).seen) else UNSEEDED]
    except EnvError as error:
        return list(error.problems)
    return [LATE_REWARD] if first.late_reward else _render_problems(env)


def _render_problems(env: HostEnv) -> list[str]:
    if env.open_render is None:
        return []
    envs: Any = env.open_render(NUM_ENVS, 0)
    try:
        envs.reset()
        pictures = envs.render()
    except OSError:  # this machine lacks what draws them
        return []
    except Exception as error:
        return [explain("render() of what open_render opened", error)]
    finally:
        envs.close()
    if len(pictures) != NUM_ENVS:
        return [f"render gave {len(pictures)} pictures; with {NUM_ENVS} environments it must give {NUM_ENVS}"]
    return [problem for problem in [picture_problem(pictures[0])] if problem]


def _play(env: HostEnv, steps: int, say: Say, *, other_after_end: bool = False) -> Played:
    """Reset and step, checking each row.

    Args:
      other_after_end: take other actions where an episode has just ended.

    Raises:
      EnvError: something is wrong already.
    """
    try:
        envs = env.open(NUM_ENVS, 0)
    except Exception as error:
        raise EnvError(env.name, [explain(f"open({NUM_ENVS}, 0)", error)]) from error
    try:
        return _rows(env, envs, steps, say, other_after_end)
    except EnvError:
        raise
    except Exception as error:
        raise EnvError(env.name, [explain("reset() or step(action) of the opened environments", error)]) from error
    finally:
        envs.close()


def _rows(env: HostEnv, envs: HostEnvs, steps: int, say: Say, other_after_end: bool) -> Played:
    action_space = copy.deepcopy(env.action_space)
    action_space.seed(0)
    obs = envs.reset()
    _raise_if(env, _obs_problems("the obs that reset returns", env.observation_space, obs))
    seen: list[Any] = [jax.tree.map(np.copy, obs)]
    done, late_reward = np.zeros(NUM_ENVS, bool), False
    for step in range(steps):
        say(f"step {step + 1} of {steps}")
        action, other = (np.stack([action_space.sample() for _ in range(NUM_ENVS)]) for _ in range(2))
        if not isinstance(action_space, spaces.Box):  # two samples of a few actions may be the same
            other = (action + 1) % np.asarray(getattr(action_space, "n", getattr(action_space, "nvec", None)))
        if other_after_end:
            action[done] = other[done]
        before, row = obs, envs.step(action)
        _raise_if(env, _row_problems(env, row))
        if not same(before, seen[-1][0] if isinstance(seen[-1], HostStep) else seen[-1]):
            _raise_if(env, ["step changes arrays that it returned before: return copies"])
        late_reward |= bool(np.any(row.reward[done] != 0))
        obs, done = row.obs, row.terminated | row.truncated
        seen.append(jax.tree.map(np.copy, row))
    return Played(seen, late_reward)


def _raise_if(env: HostEnv, problems: list[str]) -> None:
    if problems:
        raise EnvError(env.name, problems)


def _row_problems(env: HostEnv, row: Any) -> list[str]:
    if not isinstance(row, HostStep):
        theirs = isinstance(row, tuple) and len(row) == 5
        hint = ": of gymnasium's (obs, reward, terminated, truncated, info), HostStep(*row[:4])" if theirs else ""
        return [f"step returned {type(row).__name__}; it must return a jaxrl.types.HostStep{hint}"]
    problems = _obs_problems("the obs that step returns", env.observation_space, row.obs)
    for name, kinds, wanted in (("reward", "fiu", "float32"), ("terminated", "b", "bool"), ("truncated", "b", "bool")):
        value = getattr(row, name)
        if np.shape(value) != (NUM_ENVS,) or not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            shape = f"{getattr(value, 'dtype', type(value).__name__)}{list(np.shape(value))}"
            problems.append(f"{name} is {shape}; with {NUM_ENVS} environments it must be a NumPy array {wanted}[{NUM_ENVS}]")
    if not problems and not np.isfinite(row.reward).all():
        problems.append("reward is NaN or infinite")
    return problems


def _obs_problems(what: str, space: spaces.Space, obs: PyTree) -> list[str]:
    if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict) and not isinstance(space, spaces.Tuple):
        return [f"{what} is a pair whose second part is a dict: of gymnasium's (obs, info), return obs alone"]
    if not all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(obs)):
        return [f"{what} holds something else than NumPy arrays: take np.asarray of each part"]
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((NUM_ENVS, *x.shape), x.dtype), abstract(space))
    got = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), obs)
    return mismatches(what, got, batch, f"a batch of {NUM_ENVS} of observation_space", numpy="np") or outside(what, space, obs)
