"""Part of ``check_env`` that runs host environments: arrays, NEXT_STEP rows, seeds."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from jaxrl.envs.checks.space_problems import abstract, choice_problems
from jaxrl.envs.checks.validate import EnvError, explain, mismatches, outside, picture_problem, same
from jaxrl.rollout.agents import all_over, of_each_agent
from jaxrl.spaces.action_masks import allowed
from jaxrl.types import HostEnv, HostEnvs, HostStep, PyTree

NUM_ENVS = 2

Say = Callable[[str], None]

SAME_STEP = (
    "the action on the row after an episode's end has an effect: these environments reset inside the step that ends an episode "
    "(SAME_STEP), so its last observation and the first step of the next episode are lost. An ended environment must spend the "
    "next step on the reset and ignore its action (NEXT_STEP: in gymnasium.vector, autoreset_mode=AutoresetMode.NEXT_STEP)"
)
LATE_REWARD = "the row after an end is spent on the reset (NEXT_STEP), so its reward must be 0"
LATE_FLAG = (
    "the row after an end is spent on the reset (NEXT_STEP), so its flags must be False: here they are those of the end again"
)
BEYOND_LIMIT = (
    "an episode continued past max_episode_steps={limit}: set truncated at the limit in step, or give the opened environments a "
    "method reset_where(mask) (see jaxrl.types.HostEnvs)"
)
UNSEEDED = (
    "open() with the same seed gave different results: the seed and the number of an environment must determine its random stream"
)
UNNUMBERED = (
    "environment 1 of open(2, 0) differs from that of open(1, 0, first_id=1): draw the i-th environment's stream from "
    "(seed, first_id + i), for any num_envs, so that a worker can open a part of them"
)


def host_problems(env: HostEnv, steps: int, say: Say) -> list[str]:
    """Open and step two environments several times with the same seed, and the second of them alone."""
    try:
        first, late = _play(env, steps, say)
        # NEXT_STEP environments ignore actions on reset rows, so other actions there must not change the results.
        if not same(first, _play(env, steps, say, other_after_end=True)[0]):
            return [SAME_STEP if same(first, _play(env, steps, say)[0]) else UNSEEDED]
        # An open without first_id is allowed; it cannot be split over workers.
        if "first_id" in inspect.signature(env.open).parameters:
            second, _ = _play(env, steps, say, first_id=1)
            if not same(second, jax.tree.map(lambda x: x[1:], first)):
                return [UNNUMBERED]
    except EnvError as error:
        return list(error.problems)
    return sorted(late) or _evaluation_problems(env) or _render_problems(env)


def _evaluation_problems(env: HostEnv) -> list[str]:
    if env.open_eval is None:
        return []
    lead = (NUM_ENVS, env.num_agents) if env.num_agents else (NUM_ENVS,)
    action_space = copy.deepcopy(env.action_space)
    action_space.seed(0)
    try:
        with contextlib.closing(env.open_eval(NUM_ENVS, 0)) as opened:
            envs: Any = opened
            obs = envs.reset()
            row = envs.step(allowed(_samples(action_space, lead), obs, action_space))
    except Exception as error:
        return [explain("open_eval(2, 0), or reset() or step(action) of what it opened", error)]
    wrong = _obs_problems("the obs that reset returns in evaluation", env, obs, lead) or _row_problems(env, row, lead)
    return [f"open_eval: {problem}" for problem in wrong]


def _render_problems(env: HostEnv) -> list[str]:
    if env.open_render is None:
        return []
    try:
        with contextlib.closing(env.open_render(NUM_ENVS, 0)) as opened:
            envs: Any = opened
            envs.reset()
            pictures = envs.render()
    except OSError:  # this machine cannot render them
        return []
    except Exception as error:
        return [explain("render() of what open_render opened", error)]
    if len(pictures) != NUM_ENVS:
        return [f"render gave {len(pictures)} pictures; with {NUM_ENVS} environments it must give {NUM_ENVS}"]
    return [problem] if (problem := picture_problem(pictures[0])) else []


def _play(env: HostEnv, steps: int, say: Say, *, other_after_end: bool = False, first_id: int = 0) -> tuple[list[Any], set[str]]:
    """Reset and step the environments from ``first_id`` on, with other actions on rows after the end of an episode if asked.

    Return copies of everything returned, and the problems of reset rows. Raise EnvError if a call fails or a row is invalid.
    """
    keywords = {"first_id": first_id} if first_id else {}
    try:
        envs = env.open(NUM_ENVS - first_id, 0, **keywords)
    except Exception as error:
        call = f"open({NUM_ENVS - first_id}, 0{f', first_id={first_id}' if first_id else ''})"
        raise EnvError(env.name, [explain(call, error)]) from error
    try:
        return _rows(env, envs, steps, say, other_after_end, first_id)
    except EnvError:
        raise
    except Exception as error:
        raise EnvError(env.name, [explain("reset() or step(action) of the opened environments", error)]) from error
    finally:
        envs.close()


def _rows(env: HostEnv, envs: HostEnvs, steps: int, say: Say, other_after_end: bool, first_id: int) -> tuple[list[Any], set[str]]:
    action_space = copy.deepcopy(env.action_space)
    action_space.seed(0)
    obs, num_envs, agents = envs.reset(), NUM_ENVS - first_id, env.num_agents
    lead = (num_envs, agents) if agents else (num_envs,)
    _raise_if(env, _obs_problems("the obs that reset returns", env, obs, lead))
    _raise_if(env, choice_problems("after reset", obs, action_space))
    seen: list[Any] = [jax.tree.map(np.copy, obs)]
    late = set[str]()
    over: Any = np.zeros(lead, bool)
    elapsed = np.zeros(num_envs, int)
    for step in range(steps):
        say(f"step {step + 1} of {steps}")
        action, other = (_samples(action_space, (NUM_ENVS, *lead[1:]))[first_id:] for _ in range(2))
        reset = all_over(over.reshape(-1), agents)
        if not isinstance(action_space, spaces.Box):  # two samples of few actions may be equal
            other = (action + 1) % np.asarray(getattr(action_space, "n", getattr(action_space, "nvec", None)))
        action = allowed(action, obs, action_space)
        if other_after_end:
            action[reset] = other[reset]
        previous_obs, row = obs, envs.step(action)
        _raise_if(env, _row_problems(env, row, lead))
        goes_on = ~reset[(...,) + (None,) * (agents > 0)]
        waiting = over & goes_on
        flags = row.terminated, row.truncated
        terminated, truncated = (of_each_agent(flag, agents) for flag in flags) if agents else flags
        _raise_if(env, choice_problems("after a step", row.obs, action_space, waiting | terminated))
        if step:
            earlier_info, new_info = ({name: np.zeros_like(x) for name, x in info.items()} for info in (seen[-1].info, row.info))
            _raise_if(env, mismatches("the info that step returns", new_info, earlier_info, "an earlier step", numpy="np"))
        if not same(previous_obs, seen[-1].obs if step else seen[-1]):
            _raise_if(env, ["step changes arrays that it returned before: return copies"])
        ended = terminated | truncated
        late |= {LATE_REWARD} if np.any(row.reward[reset] != 0) else set()
        late |= {LATE_FLAG} if ended[reset].any() else set()
        obs, over = row.obs, waiting | (ended & goes_on)
        elapsed = np.where(reset, 0, elapsed + 1)
        if env.max_episode_steps is not None and not hasattr(envs, "reset_where"):
            beyond = (elapsed >= env.max_episode_steps) & ~all_over(over.reshape(-1), agents)
            _raise_if(env, [BEYOND_LIMIT.format(limit=env.max_episode_steps)] if beyond.any() else [])
        seen.append(jax.tree.map(np.copy, row))
    return seen, late


def _raise_if(env: HostEnv, problems: list[str]) -> None:
    if problems:
        raise EnvError(env.name, problems)


def _samples(space: spaces.Space, lead: tuple[int, ...]) -> np.ndarray:
    samples = np.stack([space.sample() for _ in range(math.prod(lead))])
    return samples.reshape(*lead, *samples.shape[1:])


def _row_problems(env: HostEnv, row: Any, lead: tuple[int, ...]) -> list[str]:
    """
    Args:
      lead: leading axes of all arrays, (num_envs,) or (num_envs, num_agents).
    """
    shape, whose = f"[{', '.join(map(str, lead))}", f"{lead[0]} environments" + (f" of {lead[1]} agents" if lead[1:] else "")
    if not isinstance(row, HostStep):
        is_gymnasium = isinstance(row, tuple) and len(row) == 5
        hint = ": make HostStep(*row[:4]) from Gymnasium's (obs, reward, terminated, truncated, info)" if is_gymnasium else ""
        return [f"step returned {type(row).__name__}; it must return a jaxrl.types.HostStep{hint}"]
    problems = _obs_problems("the obs that step returns", env, row.obs, lead)
    for name, kinds, wanted in (("reward", "fiu", "float32"), ("terminated", "b", "bool"), ("truncated", "b", "bool")):
        value = getattr(row, name)
        of_all = name != "reward" and np.shape(value) == lead[:1]  # a flag for all agents
        if not (_is_batch(value, kinds, lead) and value.ndim == len(lead)) and not (of_all and _is_batch(value, kinds, lead[:1])):
            wanted = f"a NumPy array {wanted}{shape}]"
            problems.append(f"{name} is {_shown(value)}; with {whose} it must be {wanted}")
    if not isinstance(row.info, dict):
        return [*problems, f"info is {_shown(row.info)}; it must be a dict of arrays, {{}} if there is no information"]
    for name, value in row.info.items():
        if not _is_batch(value, "biuf", lead):
            wanted = f"a NumPy array of numbers {shape}, ...]"
            problems.append(f"info[{name!r}] is {_shown(value)}; with {whose} it must be {wanted}")
    if not problems and not np.isfinite(row.reward).all():
        problems.append("reward is NaN or infinite")
    return problems


def _is_batch(value: Any, kinds: str, lead: tuple[int, ...]) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in kinds and value.shape[: len(lead)] == lead


def _shown(value: Any) -> str:
    return f"{getattr(value, 'dtype', type(value).__name__)}{list(np.shape(value))}"


def _obs_problems(subject: str, env: HostEnv, obs: PyTree, lead: tuple[int, ...]) -> list[str]:
    space = env.observation_space
    if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict) and not isinstance(space, spaces.Tuple):
        return [f"{subject} is a pair with a dict, such as Gymnasium's (obs, info): return only obs"]
    if not all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(obs)):
        return [f"{subject} has parts that are not NumPy arrays: convert each part with np.asarray"]
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype), abstract(space))
    source = f"a batch of {' × '.join(map(str, lead))} of observation_space"
    wrong = mismatches(subject, obs, batch, source, numpy="np")
    return wrong or outside(subject, space, obs)
