"""Small agents shared by the tests, and helpers to compare their states."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple
from urllib.parse import quote

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agent import policy_shapes
from jaxrl.algorithms import ALGORITHMS
from jaxrl.builder.spec import brief
from jaxrl.builder.teacher import Teacher, teacher_of
from jaxrl.distributions import Normal
from jaxrl.models import ActorCriticOutput, actor_critic, q_network
from jaxrl.replay.row_layout import Records
from jaxrl.types import Agent, Env, HostEnv, Model, StepInput
from tests.helpers.datasets import random_dataset
from tests.helpers.probes import as_box

SMALL_ACTOR_CRITIC = partial(actor_critic, hidden_sizes=(8,))
SMALL_Q_NETWORK = partial(q_network, hidden_sizes=(8,))
RECURRENT = partial(actor_critic, hidden_sizes=(16,), core="gru", core_size=16)


def only_noise(observation_space: Any, action_space: Any) -> Model:
    """Build a policy whose unscaled Box actions are standard normal noise for every observation.

    A rollout's ``raw_action`` is then the noise that was drawn.
    """

    def apply(params: Any, carry: Any, inputs: Any, key: Any = None) -> Any:
        nothing = params + jnp.zeros((*inputs.is_first.shape, *action_space.shape))
        return carry, ActorCriticOutput(Normal(nothing, nothing), nothing[..., 0])

    return Model(lambda key, inputs: jnp.zeros(()), apply, apply, lambda batch_size: ())


def assert_new_noise(rollouts: Sequence[Any]) -> None:
    """Assert, for agents of ``only_noise``, that no two rows of any environments have equal noise, up to the sign."""
    noise = np.concatenate([np.asarray(rollout.extras["raw_action"]).ravel() for rollout in rollouts])
    assert np.unique(np.abs(noise)).size == noise.size > len(rollouts)


class Tiny(NamedTuple):
    """Facts about an algorithm for tests of all algorithms: ``TINY`` in ``tests/algorithms/test_NAME.py``."""

    settings: dict[str, Any]
    """Settings of a small agent: four environments, a network of 8 units, no annealing."""
    value: Callable[[Agent, Any, StepInput], Any] | None
    """(agent, learner, inputs) -> V, or Q of each action, or of one; None for algorithms without values."""
    one_gradient: tuple[str, dict[str, Any]] | None = None
    """Environment and settings with which an iteration is one gradient, independent of draws and shuffles; None if there are
    none, since networks use moments of their batch."""
    value_rate: str = "learning_rate"
    """Hyperparameter that is the step size of ``value``."""
    boxed: bool = False
    """Convert environments with Discrete actions to a Box of one number."""


@cache
def tiny(algorithm: str) -> Tiny:
    return importlib.import_module(f"tests.algorithms.test_{algorithm}").TINY


def outputs_of(agent: Agent, learner: Any, inputs: StepInput) -> Any:
    """Return the output of the model of an algorithm with one model."""
    name = brief(agent.spec["builder"]).removeprefix("make_")
    model = tiny(name).settings["model"](agent.env.observation_space, agent.env.action_space)
    return model.apply(learner.params, (), inputs)[1]


def suited(algorithm: str, env: str | Env | HostEnv) -> Any:
    """Convert an environment with Discrete actions for the small agent of an algorithm."""
    if not tiny(algorithm).boxed:
        return env
    return f"tests.helpers.probes:boxed?id={quote(env, safe='')}" if isinstance(env, str) else as_box(env)


def gymnax_id(algorithm: str) -> str:
    """Return the id of an environment whose actions the algorithm supports without conversion."""
    return "CartPole-v1" if "Discrete" in ALGORITHMS[algorithm].actions else "Pendulum-v1"


def required(algorithm: str, env: str | Env | HostEnv) -> dict[str, Any]:
    """Return the keywords without which the builder of an algorithm refuses an environment."""
    if algorithm in TAUGHT:
        return {"teacher": some_teacher(env)}
    return {"data": random_dataset(suited(algorithm, env))} if algorithm in FROM_DATA else {}


def some_teacher(env: str | Env | HostEnv, **settings: Any) -> Teacher:
    """Return a policy of PPO with arbitrary parameters, always the same."""
    agent, rng = small_ppo(env, **settings), np.random.default_rng(0)
    return teacher_of(agent, jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), policy_shapes(agent)))


def small(algorithm: str, env: str | Env | HostEnv, **settings: Any) -> Agent:
    keywords = {**tiny(algorithm).settings, **required(algorithm, env), **settings}
    return ALGORITHMS[algorithm].load().make(suited(algorithm, env), **keywords)


small_ppo, small_dqn = partial(small, "ppo"), partial(small, "dqn")


ALGORITHM_NAMES = tuple(ALGORITHMS)
FROM_DATA = tuple(name for name, entry in ALGORITHMS.items() if entry.family == "dataset")
"""Algorithms that learn from a dataset alone; others may learn from one."""
PLAYING = tuple(name for name in ALGORITHM_NAMES if name not in FROM_DATA)
"""Algorithms that play an environment."""
SEARCHING = ("alphazero", "muzero")
"""Algorithms that search trees. Their programs compile for long: their own files have their quick tests."""
REPRESENTATIVES = tuple({ALGORITHMS[name].family: name for name in reversed(PLAYING) if name not in SEARCHING}.values())
"""The first algorithm of each family that plays, but for those that search."""

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
every_playing_algorithm = pytest.mark.parametrize("algorithm", PLAYING)


def algorithms(in_make_test: Sequence[str], names: Sequence[str] = PLAYING) -> Any:
    """Parametrize a test of the code that runs an algorithm, not of the algorithm: those outside ``make test`` are slow."""
    return pytest.mark.parametrize("algorithm", [pytest.param(name, marks=slow_unless(name in in_make_test)) for name in names])


def slow_unless(in_make_test: bool) -> Any:
    return () if in_make_test else pytest.mark.slow


TAUGHT = ("dagger", "qdagger")
"""Algorithms with a teacher."""
IN_A_SPEC = tuple(name for name in PLAYING if name not in TAUGHT)
"""Algorithms whose agents a spec describes entirely. Those with a teacher do not have its parameters there."""
LEARN_FROM_ROWS = tuple(name for name in IN_A_SPEC if ALGORITHMS[name].family != "evolution")
"""Algorithms that learn from rollouts and discount rewards."""
ESTIMATE_VALUES = tuple(name for name in LEARN_FROM_ROWS if name != "mpc")
"""Those of them that estimate values. MPC adds up rewards along its plans, which end at its horizon."""
LEARN_ANYWHERE = tuple(name for name in ESTIMATE_VALUES if name != "alphazero")
"""Those of them that do not plan with the environment itself, and so also learn on the host and from several agents."""


def builders(names: Sequence[str]) -> Any:
    return pytest.mark.parametrize(
        "build", [pytest.param(partial(small, name), id=name, marks=slow_unless(name in REPRESENTATIVES)) for name in names]
    )


every_builder, every_rollout_builder = builders(PLAYING), builders(LEARN_FROM_ROWS)
"""For tests of what all builders do: ``make test`` runs the first of each family."""
each_family = algorithms(REPRESENTATIVES)
"""For tests of code that knows families: ``make test`` runs the first algorithm of each."""
each_rollout_family = algorithms(REPRESENTATIVES, LEARN_FROM_ROWS)
"""The same for the families that learn from rollouts."""
each_family_with_values = algorithms(REPRESENTATIVES, ESTIMATE_VALUES)
"""The same for those that estimate values."""
each_family_anywhere = algorithms(REPRESENTATIVES, LEARN_ANYWHERE)
"""The same for those that also learn on the host and from several agents."""
ppo_first = algorithms(["ppo"])
"""For tests of code that knows no families: ``make test`` runs PPO."""


@cache
def cartpole(algorithm: str) -> Agent:
    return small(algorithm, "CartPole-v1")


@cache
def jitted(agent_step: Any) -> Any:
    """Return one compiled step per agent, shared by the tests."""
    return jax.jit(agent_step)


def run_steps(agent: Agent, state: Any, num_steps: int) -> Any:
    """Run ``num_steps`` iterations, one call each, with a step that is traced once. Return ``(state, last metrics)``."""
    step, metrics = jitted(agent.step), None
    for _ in range(num_steps):
        state, metrics = step(state)
    # chex.assert_max_traces would count the steps of all agents together: it tells functions apart by their source.
    assert step._cache_size() <= 1
    return state, metrics


def to_numpy(tree: Any) -> Any:
    """Convert to NumPy arrays; typed keys become their data."""

    def convert(x: Any) -> np.ndarray:
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    return jax.tree.map(convert, tree)


def assert_bit_equal(a: Any, b: Any) -> None:
    jax.tree.map_with_path(
        lambda path, x, y: np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path), strict=True),
        to_numpy(a),
        to_numpy(b),
    )


def assert_close(a: Any, b: Any, atol: float = 1e-5) -> None:
    """Assert that integers are equal, and floats within ``atol`` (relative to 1 or to the value, whichever is larger)."""

    def compare(path: Any, x: np.ndarray, y: np.ndarray) -> None:
        name = jax.tree_util.keystr(path)
        if np.issubdtype(x.dtype, np.floating):
            np.testing.assert_allclose(x, y, atol=atol, rtol=atol, err_msg=name)
        else:
            np.testing.assert_array_equal(x, y, err_msg=name)

    jax.tree.map_with_path(compare, to_numpy(unpacked(a)), to_numpy(unpacked(b)))


def unpacked(tree: Any) -> Any:
    """Unpack the rows of replay buffers into their original leaves, so that floats can be compared."""
    is_records = lambda x: isinstance(x, Records)  # noqa: E731
    return jax.tree.map(lambda x: x.unpack() if is_records(x) else x, tree, is_leaf=is_records)
