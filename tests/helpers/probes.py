"""Probe environments (after Andy Jones). Each isolates one possible error of an algorithm, with a known answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs import make_env
from jaxrl.types import Env, HostEnv, TimeStep


def _box(size: int = 1) -> spaces.Box:
    return spaces.Box(-1.0, 1.0, (size,), np.float32)


def _step(obs: Any, reward: Any, terminated: Any, truncated: Any = False) -> TimeStep:
    return TimeStep(
        jnp.asarray(obs, jnp.float32),
        jnp.asarray(reward, jnp.float32),
        jnp.asarray(terminated, bool),
        jnp.asarray(truncated, bool),
    )


def constant_reward(num_actions: int = 2) -> Env:
    """One step, reward 1: V = 1."""

    def reset(key: jax.Array, params: Any) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return state, _step(jnp.zeros(1), 1.0, True)

    return Env(reset, step, _box(), spaces.Discrete(num_actions), (), "tests.helpers.probes:constant_reward")


def discounting() -> Env:
    """Two steps, reward 1 at the second: V(first) = gamma, V(second) = 1."""

    def reset(key: jax.Array, params: Any) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return state + 1, _step(jnp.ones(1), state, state >= 1)

    return Env(reset, step, _box(), spaces.Discrete(2), (), "tests.helpers.probes:discounting")


def observed_value() -> Env:
    """One step, reward equal to a random observation of ±1: V(obs) = obs."""

    def reset(key: jax.Array, params: Any) -> Any:
        obs = jax.random.rademacher(key, (1,), jnp.float32)
        return obs, obs

    def step(key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return state, _step(state, state[0], True)

    return Env(reset, step, _box(), spaces.Discrete(2), (), "tests.helpers.probes:observed_value")


def action_choice() -> Env:
    """One step, reward +1 for action 1 and −1 for action 0."""

    def reset(key: jax.Array, params: Any) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return state, _step(jnp.zeros(1), jnp.where(action == 1, 1.0, -1.0), True)

    return Env(reset, step, _box(), spaces.Discrete(2), (), "tests.helpers.probes:action_choice")


def costly_choice(num_agents: int = 0, steps: int = 1) -> Env:
    """Reward 1 and cost 1 for action 1, nothing for action 0: with a limit the best policy mixes both."""
    lead = (num_agents,) * (num_agents > 0)

    def reset(key: jax.Array, params: Any) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros((*lead, 1))

    def step(key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        chosen, over = (action == 1).astype(jnp.float32), jnp.full(lead, state + 1 >= steps)
        return state + 1, _step(jnp.zeros((*lead, 1)), chosen, over, jnp.zeros(lead, bool))._replace(info={"cost": chosen})

    return Env(reset, step, _box(), spaces.Discrete(2), (), "tests.helpers.probes:costly_choice", num_agents=num_agents)


def action_by_observation() -> Env:
    """One step, reward +1 when the action matches the sign of a random observation, else −1."""

    def reset(key: jax.Array, params: Any) -> Any:
        obs = jax.random.rademacher(key, (1,), jnp.float32)
        return obs, obs

    def step(key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return state, _step(state, jnp.where((action == 1) == (state[0] > 0), 1.0, -1.0), True)

    return Env(reset, step, _box(), spaces.Discrete(2), (), "tests.helpers.probes:action_by_observation")


def two_choices() -> Env:
    """One step, MultiDiscrete [2, 3]: ½ for the higher action of the first, and ½ for the highest *allowed* one of the second.

    The last action of the second is allowed if the observation's sign is positive. A forbidden action costs 100. At the end no
    action is allowed.
    """

    def observe(sign: Any, mask: Any) -> Any:
        return {"sign": sign, "action_mask": jnp.asarray(mask, jnp.int8)}

    def reset(key: jax.Array, params: Any) -> Any:
        sign = jax.random.rademacher(key, (1,), jnp.float32)
        return sign, observe(sign, jnp.array([1, 1, 1, 1, 0]).at[4].set(sign[0] > 0))

    def step(key: jax.Array, sign: Any, action: Any, params: Any) -> Any:
        last = jnp.where(sign[0] > 0, 2, 1)
        reward = 0.5 * (action[0] == 1) + 0.5 * (action[1] == last) - 100.0 * (action[1] > last)
        return sign, TimeStep(observe(sign, jnp.zeros(5)), reward, jnp.array(True), jnp.array(False))

    seen = spaces.Dict({"sign": _box(), "action_mask": spaces.MultiBinary(5)})
    return Env(reset, step, seen, spaces.MultiDiscrete([2, 3]), (), "tests.helpers.probes:two_choices")


def target_action() -> Env:
    """One step with a continuous action in [0, 4]: reward −(a − 3)²."""

    def reset(key: jax.Array, params: Any) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return state, _step(jnp.zeros(1), -((action[0] - 3.0) ** 2), True)

    return Env(reset, step, _box(), spaces.Box(0.0, 4.0, (1,), np.float32), (), "tests.helpers.probes:target_action")


class Cut(NamedTuple):
    """Parameters of the truncation probe."""

    every: Any = 5
    """Rows after which an episode is truncated."""


def truncation(every: int = 5) -> Env:
    """Reward 1 forever, truncated every ``every`` steps: V = 1 / (1 − gamma) everywhere, independent of ``every``."""

    def reset(key: jax.Array, params: Cut) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(key: jax.Array, state: Any, action: Any, params: Cut) -> Any:
        state = state + 1
        return state, _step(jnp.zeros(1), 1.0, False, state >= params.every)

    return Env(reset, step, _box(), spaces.Discrete(2), Cut(every), "tests.helpers.probes:truncation")


def endless() -> Env:
    """One endless episode without reward. Observations are the random number that its reset drew, and the time in 1/1024."""

    def reset(key: jax.Array, params: Any) -> Any:
        obs = jnp.array([1.0, 0.0]) * jax.random.uniform(key, minval=-1.0)
        return obs, obs

    def step(key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        state = state + jnp.array([0.0, 1 / 1024])
        return state, _step(state, 0.0, False)

    return Env(reset, step, _box(2), spaces.Discrete(2), (), "tests.helpers.probes:endless")


def as_box(env: Env | HostEnv) -> Env | HostEnv:
    """Replace Discrete actions by equal parts of the Box [−1, 1], for algorithms that need a Box.

    A single action becomes a Box of width 0.
    """
    if not isinstance(env.action_space, spaces.Discrete):
        return env
    count = int(env.action_space.n)
    end = 0.0 if count == 1 else 1.0
    box = spaces.Box(-end, end, (1,), np.float32)

    def number(action: Any) -> Any:
        xp = action.__array_namespace__()
        return xp.clip((action[..., 0] + 1.0) * (0.5 * count), 0, count - 1).astype(xp.int32)

    if isinstance(env, Env):
        step = lambda key, state, action, params: env.step(key, state, number(action), params)  # noqa: E731
        return env._replace(step=step, action_space=box)

    def open_boxed(*args: Any, **kwargs: Any) -> Any:
        envs = env.open(*args, **kwargs)
        for name in ("step", "send"):
            if plain := getattr(envs, name, None):
                setattr(envs, name, lambda action, plain=plain: plain(number(action)))
        return envs

    return env._replace(open=open_boxed, action_space=box)


def boxed(id: str) -> Env | HostEnv:
    """Return ``as_box`` of the environment with this id."""
    return as_box(make_env(id))


CUE_DELAY = 3


def memory() -> Env:
    """A cue of ±1 at the first step. ``CUE_DELAY`` steps later the right action earns 1 and the wrong one −1.

    The later observation shows only that the action counts now, so a policy without memory has a mean return of 0.
    """

    def observe(cue: Any, time: Any) -> Any:
        return jnp.stack([jnp.where(time == 0, cue, 0.0), (time == CUE_DELAY).astype(jnp.float32)])

    def reset(key: jax.Array, params: Any) -> Any:
        cue = jax.random.rademacher(key, (), jnp.float32)
        time = jnp.zeros((), jnp.int32)
        return (cue, time), observe(cue, time)

    def step(key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        cue, time = state
        asked = time == CUE_DELAY
        reward = jnp.where(asked, jnp.where((action == 1) == (cue > 0), 1.0, -1.0), 0.0)
        return (cue, time + 1), _step(observe(cue, time + 1), reward, asked)

    return Env(reset, step, _box(2), spaces.Discrete(2), (), "tests.helpers.probes:memory")


PAYOFFS = ((1.0, -1.0), (-1.0, -0.5))
"""Rewards of player 1 in ``two_players``, by the action of player 0 and by its own."""


def two_players() -> Env:
    """Player 0 moves, then player 1 moves twice, and gets ``PAYOFFS`` by the first two moves at the end.

    Both play best with action 1, so player 0 gains ½. If the gains of both counted as one, player 0 would choose action 0.
    """

    def observe(state: Any) -> Any:
        return {"position": jax.nn.one_hot(state, 7, dtype=jnp.float32), "player": jnp.asarray(state > 0, jnp.int32)}

    def reset(key: jax.Array, params: Any) -> Any:
        state = jnp.zeros((), jnp.int32)
        return state, observe(state)

    def step(key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        # States are 0, 1 and 2 by the first action, and 3 to 6 by the first two.
        over = state >= 3
        reward = jnp.where(over, jnp.array(PAYOFFS).ravel()[jnp.maximum(state - 3, 0)], 0.0)
        state = jnp.where(over, state, 2 * state + 1 + action).astype(jnp.int32)
        return state, TimeStep(observe(state), reward, over, jnp.array(False))

    seen = spaces.Dict({"position": spaces.Box(0.0, 1.0, (7,), np.float32), "player": spaces.Discrete(2)})
    return Env(reset, step, seen, spaces.Discrete(2), (), "tests.helpers.probes:two_players", players=2)
