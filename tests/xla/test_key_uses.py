"""No random number is used twice, with settings that draw more than the defaults. For defaults see ``test_contract.py``."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxrl.algorithms import ALGORITHMS
from jaxrl.envs import make_env
from jaxrl.envs.wrappers import sticky_actions
from jaxrl.intrinsic import rnd
from jaxrl.options import Ensemble, Quantiles
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.types import Agent, Env
from jaxrl.xla import fast_random
from tests.helpers.agents import tiny
from tests.helpers.key_uses import counting, twice, uses_of

OWN = {"model": {"hidden_sizes": (8,)}}
CRITICS = {**OWN, "critic": None}
SETTINGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "SAC in hindsight": ("sac", "jaxrl:Reach", {"hindsight": "future"}),
    "DQN in hindsight": ("dqn", "jaxrl:BitFlip?n=4", {"hindsight": "future", "replay": "prioritized"}),
    "noisy networks": (
        "dqn",
        "CartPole-v1",
        {**OWN, "head": "iqn", "noise": "noisy", "bootstrap": "munchausen", "replay": "prioritized"},
    ),
    "some critics": ("sac", "Pendulum-v1", {**OWN, "critic": {"dropout": 0.1}, "critics": Ensemble(size=3, subset=2)}),
    "priorities": (
        "td3",
        "jaxrl:Reach",
        {"hindsight": "future", "replay": prioritised_replay(), "policy_delay": 2, "replay_ratio": 16},
    ),
    "optimism": ("sac", "Pendulum-v1", {**CRITICS, "critics": Quantiles(num_quantiles=5), "exploration": "optimistic"}),
    "steps that draw": ("a2c", "tests.xla.test_key_uses:sticky_pendulum", {}),
    "a constraint": ("ppo", "jaxrl:Hazards", {"constraint": "lagrangian"}),
    "an intrinsic reward": ("ppo", "CartPole-v1", {"intrinsic": partial(rnd, hidden_sizes=(8,), embedding_size=4)}),
}


def sticky_pendulum() -> Env:
    env = make_env("Pendulum-v1")
    assert isinstance(env, Env)
    return sticky_actions(env)


def made(name: str, **settings: Any) -> Agent:
    algorithm, env, own = SETTINGS[name]
    return ALGORITHMS[algorithm].load().make(env, **{**tiny(algorithm).settings, **own, **settings})


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_no_random_number_is_used_twice(name: str) -> None:
    assert not twice(uses_of(made(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["noisy networks", "some critics"])
def test_nor_on_several_devices(name: str) -> None:
    """Each device draws what it does not share with the others from separate streams."""
    agent = made(name, axis_name="d")
    _, state = counting(agent.init, jax.random.key(7))(jax.random.key(7))
    found, _ = counting(lambda state: jax.vmap(agent.step, in_axes=None, axis_size=4, axis_name="d")(state), state)(state)
    assert not twice(found)


# ---------------------------------------------------------------------------------------------------------------------- counting


def uses(function: Any) -> list[str]:
    key = jax.random.key(0)
    return twice(counting(function, key)(key)[0])


def bits(key: Any, n: int = 3) -> Any:
    return jax.random.bits(key, (n,))


def loop(body: Any) -> Any:
    return lambda key: jax.lax.scan(lambda _, i: (None, body(key, i)), None, jnp.arange(3))[1]


RIGHT = {
    "made twice, drawn once": lambda key: (jax.random.fold_in(key, 1), bits(jax.random.split(key)[1])),
    "keys of a loop": loop(lambda key, i: bits(jax.random.fold_in(key, i))),
    "each of a batch": lambda key: jax.vmap(bits)(jax.random.split(key, 3)),
    "one for a batch": lambda key: jax.vmap(lambda x: x + bits(key))(jnp.arange(3)),
    "far apart": lambda key: (bits(key), bits(jax.random.fold_in(key, 2**31))),
    "words": lambda key: jax.random.key_data(key) + 1,
    "another kind": lambda key: fast_random.bits(key, (3,)),
}
WRONG = {
    "drawn twice": lambda key: (bits(key), bits(key, 1)),
    "a split and a fold": lambda key: (bits(jax.random.split(key, 3)[2]), bits(jax.random.fold_in(key, 2))),
    "drawn, and made of": lambda key: (bits(key), bits(jax.random.fold_in(key, 2))),
    "in a loop": loop(lambda key, i: bits(key)),
    "in a batch": lambda key: jax.vmap(lambda i: bits(jax.random.fold_in(key, i // 2)))(jnp.arange(3)),
    "in another kind": lambda key: (fast_random.bits(key, (3,)), bits(key)),
    "words": lambda key: (jax.random.key_data(key) + 1, jax.jit(lambda key: jax.random.key_data(key) + 2)(key)),
    "in a branch": lambda key: jax.lax.cond(key.ndim == bits(key)[0], bits, lambda key: bits(jax.random.split(key)[0]), key),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_may_be(name: str) -> None:
    assert uses(RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_what_may_not(name: str) -> None:
    assert uses(WRONG[name])
