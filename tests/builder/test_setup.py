"""Shared parts of algorithms: a bound ``AlgorithmSetup``, with the example's REINFORCE, which has nothing else. Shapes only."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxrl
from examples.custom_algorithm import make_reinforce
from jaxrl.builder.setup import Learner
from jaxrl.metrics import to_floats
from jaxrl.types import Policy
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, SMALL_ACTOR_CRITIC
from tests.helpers.optimizers import halved, plain_sgd

KEY = partial(jax.random.key, 0)


def test_a_small_algorithm_takes_every_part() -> None:
    """A recurrent model, an optimizer, schedules, a device axis: the algorithm handles none of them itself."""
    agent = make_reinforce(
        "tests.helpers.probes:truncation",
        model=RECURRENT,
        optimizer=plain_sgd,
        schedules={"gamma": halved},
        axis_name="d",
        gamma=0.5,
    )
    spec = agent.spec
    assert jaxrl.build(spec).spec == spec and spec["settings"]["max_grad_norm"] is None
    states = jax.eval_shape(jax.vmap(agent.init), jax.eval_shape(lambda: jax.random.split(KEY(), 1)))
    after, metrics = jax.eval_shape(jax.vmap(agent.step, axis_name="d"), states)
    assert jax.tree.structure(after) == jax.tree.structure(states) and isinstance(after.learner, Learner)
    assert {"losses/loss", "losses/grad_norm", "charts/learning_rate"} <= set(metrics)


def test_a_small_algorithm_says_what_is_wrong_as_all_do() -> None:
    with pytest.raises(TypeError, match=r"^make_reinforce\(\) got an unknown keyword 'gama'. Did you mean 'gamma'"):
        make_reinforce("tests.helpers.probes:truncation", gama=0.5)
    with pytest.raises(ValueError, match="max_grad_norm=3 has no effect"):
        make_reinforce("tests.helpers.probes:truncation", optimizer=plain_sgd, max_grad_norm=3)
    with pytest.raises(TypeError, match="unroll must return"):
        model = SMALL_ACTOR_CRITIC(probes.truncation().observation_space, probes.truncation().action_space)
        make_reinforce("tests.helpers.probes:truncation", model=model._replace(unroll=lambda params, carry, inputs: None))


def test_an_update_counts_and_the_rate_it_logs_is_the_scheduled_one() -> None:
    given = {"schedules": {"learning_rate": optax.linear_schedule(1, 0, 4)}, "learning_rate": 0.5}
    ready = make_reinforce("tests.helpers.probes:truncation", **given)
    learner = jax.jit(ready.algorithm.init)(KEY(), ready.hyperparams)._replace(version=jnp.int32(2))
    assert isinstance(ready.algorithm.policy(learner), Policy)
    _, metrics = jax.eval_shape(ready.step, jax.eval_shape(ready.init, KEY()))
    assert "charts/learning_rate" in metrics
    setup = ready.algorithm.update.args[0]  # type: ignore[attr-defined]
    now = setup.current(learner)
    assert float(now.learning_rate) == 0.25
    after, metrics = setup.updated(learner, now, {"losses/loss": jnp.ones(3)}, params=())
    assert (int(after.version), after.params, after.opt_state) == (3, (), learner.opt_state)
    assert to_floats(metrics) == {"losses/loss": 1.0, "charts/learning_rate": 0.25}
