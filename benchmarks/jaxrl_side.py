"""jaxrl's programs of a case: as ``jaxrl.run`` runs it, with all seeds on one device, its updates alone, and a random policy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

import jaxrl
from benchmarks.cases import Case
from benchmarks.worker import EPISODES, count_parameters, serve_program
from jaxrl.agent import bind, lane_ids
from jaxrl.builder.spec import describe_env
from jaxrl.metrics import all_reduce, to_floats
from jaxrl.models import actor_critic, q_network
from jaxrl.options import Clip, LearnedTemperature
from jaxrl.rollout.collect import collect
from jaxrl.rollout.env_batches import fold_each
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.runtime.trainers.device_layout import open_fused
from jaxrl.runtime.trainers.fused import FusedDriver
from jaxrl.training import evaluate_pure, num_iterations
from jaxrl.types import Agent, Algorithm, Array, Key, Mean, Metrics, Policy, PyTree, Rollout, StepInput


def make_agent(case: Case) -> Agent:
    """Return the agent of a case, with Rejax's loss and, unless the case says otherwise, Rejax's network."""
    network = {
        "hidden_sizes": tuple(case.hidden_sizes),
        "activation": "tanh" if case.algorithm == "ppo" else "relu",
    } | case.network
    if case.algorithm == "ppo":
        model, settings = partial(actor_critic, **network), dict(case.settings)
        surrogate = Clip(eps=settings.pop("clip_eps"), value_loss=True)
        return jaxrl.make_ppo(case.env, model=model, surrogate=surrogate, anneal=False, **settings)
    ratio = case.settings["batch_size"] / case.settings["num_envs"]
    settings = {"rollout_length": 1, "replay_ratio": ratio, "n_step": 1, "anneal": False} | case.settings
    if case.algorithm in ("sac", "crossq"):
        rate, build = case.settings["learning_rate"], getattr(jaxrl, f"make_{case.algorithm}")
        rates = {"actor_learning_rate": rate, "temperature": LearnedTemperature(learning_rate=rate)}
        return build(case.env, model=network, **rates, **settings)
    model = partial(q_network, **network)
    return jaxrl.make_dqn(case.env, model=model, target_update_interval=1, **settings)


# --------------------------------------------------------------------------------------------------------------------- updates


class Held(NamedTuple):
    """A fixed rollout that takes the place of the actor in a state."""

    rows: dict[str, Any]
    """Fields of a Rollout of shape [T, B]."""
    starts: dict[str, Any]
    """Fields of a Rollout of shape [B]."""
    done: Array

    @property
    def env_axes(self) -> dict[str, int]:
        return {"rows": 1, "starts": 0, "done": 0}


def updates_alone(agent: Agent) -> Agent:
    """Return an agent with the same updates, which all use the rollout that ``init`` collects."""
    env: Any = agent.env

    def init(key: Key, hyperparams: Any = None, env_params: Any = None) -> Any:
        state, env_id = agent.init(key, hyperparams, env_params), lane_ids(agent.num_envs, None)
        policy, key = agent.algorithm.policy(state.learner), jax.random.fold_in(state.key, state.iteration)
        args = (policy, state.actor, state.env_params, env_id, key, agent.rollout_length)
        _, rollout, _ = collect(agent.algorithm, env, *args)
        rows = rollout._asdict()
        starts = {name: rows.pop(name) for name in ("carry", "env_id", "version")}
        return state._replace(actor=Held(rows, starts, state.actor.done))  # type: ignore[arg-type]

    def step(state: Any) -> tuple[Any, Metrics]:
        rollout = Rollout(**state.actor.rows, **state.actor.starts)
        with jax.named_scope("update"):
            learner, metrics = agent.algorithm.update(state.learner, rollout)
        rows = jnp.full((), rollout.valid.size, jnp.int32)
        metrics = all_reduce({**metrics, "charts/valid_rows": Mean(rows, rows)}, agent.axis_name)
        return state._replace(learner=learner, iteration=state.iteration + 1), metrics

    return agent._replace(init=init, step=step)


# ----------------------------------------------------------------------------------------------------------------------- bound


class NoHyperparams(NamedTuple):
    pass


class NoLearner(NamedTuple):
    """A LearnerState with nothing but a version counter."""

    version: Array
    params: tuple[()] = ()
    opt_state: tuple[()] = ()
    hyperparams: NoHyperparams = NoHyperparams()
    statistics: tuple[()] = ()
    key: tuple[()] = ()


RANDOM = "benchmarks.jaxrl_side:make_random_agent"
"""Import path for worker processes. If this module runs as a script, the function is in ``__main__``."""


def make_random_agent(env: Any, num_envs: int, rollout_length: int) -> Agent:
    """Return an agent with uniformly random actions that does not learn: an upper bound on the speed of stepping."""
    bound: Any = jaxrl.make_env(env) if isinstance(env, str) else env
    space: Any = bound.action_space

    def random_action(key: Key) -> Array:
        if isinstance(space, spaces.Box):
            return jax.random.uniform(key, space.shape, space.dtype, space.low, space.high)
        return jax.random.randint(key, (), 0, int(space.n), jnp.int32)

    def act(policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool) -> Any:
        return carry, jax.vmap(random_action)(fold_each(key, env_id)), {}

    def update(learner: NoLearner, rollout: Rollout) -> tuple[NoLearner, Metrics]:
        return learner._replace(version=learner.version + 1), {}

    algorithm = Algorithm(
        init=lambda key, hyperparams: NoLearner(jnp.zeros((), jnp.int32)),
        policy=lambda learner: Policy((), (), (), learner.version),
        act=act,
        update=update,
        initial_carry=lambda batch_size: (),
    )
    settings: dict[str, Any] = {"num_envs": num_envs, "rollout_length": rollout_length}
    spec = {"builder": {"import": RANDOM}, "env": describe_env(bound), "settings": settings, "parts": {}}
    return bind(algorithm, bound, **settings, hyperparams=NoHyperparams(), spec=spec)


# --------------------------------------------------------------------------------------------------------------------- program


class FusedProgram:
    """An agent with the driver of ``jaxrl.run``: seeds sharded over devices, one call for the whole training."""

    name, version = "jaxrl", jaxrl.__version__

    def __init__(
        self, agent: Agent, case: Case, part: Callable[[Agent], Agent] = lambda agent: agent, num_devices: int | None = None
    ) -> None:
        """
        Args:
          part: Function that returns the part of the agent to run, on the devices that the whole agent would use.
          num_devices: Number of devices. Default: the choice of ``jaxrl.run``.
        """
        self._agent, self._case = part(agent), case
        self._iterations = num_iterations(agent, case.total_steps)
        self._warmup_steps = agent.algorithm.warmup_iterations * agent.steps_per_iteration
        self.total_steps = self._iterations * agent.steps_per_iteration + self._warmup_steps
        if num_devices is None:
            opened, layout = open_fused(agent, range(case.num_seeds))
            self._layout: tuple[Any, ...] = (layout.devices, layout.devices_per_seed, part(opened.stepping))
        else:
            self._layout = (jax.devices()[:num_devices], 1, self._agent)
        self._programs: dict[Any, Any] = {}

    def compile(self) -> tuple[float, int]:
        driver = self._driver(np.arange(self._case.num_seeds))
        states, *_ = driver.iterate(driver.init(), 1)
        return driver.compile_seconds, count_parameters(states.learner.params) // self._case.num_seeds

    def prepare(self, seeds: np.ndarray) -> tuple[FusedDriver, Any]:
        """Return a driver, and its initial states if their rows are not timed."""
        driver = self._driver(seeds)
        return driver, None if self._case.times_warmup else jax.block_until_ready(driver.init())

    def train(self, prepared: tuple[FusedDriver, Any]) -> tuple[Any, int]:
        driver, states = prepared
        states, metrics, _ = jax.block_until_ready(driver.iterate(driver.init() if states is None else states, self._iterations))
        valid = to_floats({"valid": metrics["charts/valid_rows"]})["valid"] or 0.0
        trained_rows = self.total_steps - self._warmup_steps
        warmup_rows = int(np.sum(states.warmup_rows)) if self._case.times_warmup else 0
        return states, round(valid * trained_rows * self._case.num_seeds) + warmup_rows

    def policies(self, states: Any) -> Policy:
        return jax.vmap(self._agent.algorithm.policy)(states.learner)

    def evaluate(self, policies: Policy, keys: Key) -> Array:
        def mean_return(policy: Policy, key: Key) -> Array:
            return evaluate_pure(self._agent, policy, key, EPISODES).episodic_return.mean()

        return jax.jit(jax.vmap(mean_return))(policies, keys)

    def _driver(self, seeds: np.ndarray) -> FusedDriver:
        driver = FusedDriver(self._agent, seeds.tolist(), *self._layout)
        driver.programs = self._programs  # compiled once for all seeds
        return driver


def make_program(case: Case, side: str) -> FusedProgram:
    if side == "vmapped":  # JAX's default: one device with all cores
        return FusedProgram(make_agent(case), case, num_devices=1)
    request_cpu_devices()
    if side == "random":
        case = case._replace(total_steps=case.bound_total_steps or case.total_steps)
        return FusedProgram(make_random_agent(case.env, case.settings["num_envs"], case.settings.get("rollout_length", 1)), case)
    agent = make_agent(case)
    if side == "updates":
        return FusedProgram(agent, case._replace(total_steps=case.updates_total_steps), updates_alone)
    return FusedProgram(agent, case)


def main(case_json: str, side: str) -> None:
    case = Case(**json.loads(case_json))
    serve_program(make_program(case, side), case)


if __name__ == "__main__":
    main(*sys.argv[1:])
