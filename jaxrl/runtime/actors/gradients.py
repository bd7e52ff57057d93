"""Learners that combine gradients: the mean of the workers', each worker's as it arrives, or the mean over devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxrl.builder.spec import build
from jaxrl.metrics import all_reduce
from jaxrl.parallel import DATA, check_devices, declared_axes, make_mesh, specs_of
from jaxrl.rollout.collect import JOINED
from jaxrl.runtime.actors.pool import ActorPool
from jaxrl.runtime.samplers.diagnostics import Stopwatch, gradient_staleness, policy_lag
from jaxrl.runtime.system.devices import shard_count
from jaxrl.runtime.trainers.host import HostDriver, HostLearner
from jaxrl.types import Agent, AgentState, Mean, Metrics, PyTree, Rollout
from jaxrl.xla.ordered_collectives import in_order
from jaxrl.xla.seed_axis import over_seeds


class MeanLearner(HostLearner):
    """Learner that applies the mean of the workers' gradients, weighted by their valid rows.

    This is the gradient of the whole rollout, except for rounding and for statistics that a loss computes over all rows.
    """

    def learn_from(self, learner: Any, rollout: Rollout, metrics: Metrics, gradients: PyTree = ()) -> tuple[Any, Metrics]:
        """Apply the mean of ``gradients``, [num_workers, ...]."""
        num_workers = jax.tree.leaves(gradients)[0].shape[0]
        rows = rollout.valid.reshape(rollout.valid.shape[0], num_workers, -1).sum((0, 2)).astype(jnp.float32)
        weights = rows / jnp.maximum(rows.sum(), 1)
        mean = jax.tree.map(lambda x: jnp.tensordot(weights.astype(x.dtype), x, 1), gradients)
        return _applied(self.agent, learner, rollout, of_one_update(metrics, num_workers), mean)


class PartLearner(HostLearner):
    """Learner that applies one worker's gradient at a time (Mnih et al. 2016, algorithm S3)."""

    iterations_per_update = 0

    def __init__(self, agent: Agent, sampler: ActorPool, num_seeds: int) -> None:
        """Build a learner for one worker's share of the environments. Everything that counts updates then counts shares."""
        self.share = build(agent.spec, env=agent.env, num_envs=sampler.members[0].job.num_envs)
        super().__init__(agent, sampler, num_seeds)
        self.policy = jax.jit(over_seeds(num_seeds)(self.share.algorithm.policy))

    def warmup_rollouts(self, state: AgentState) -> Iterator[Rollout]:
        self.collecting(state)
        pool: Any = self.sampler
        for _ in pool.members:
            yield pool.next_part()[0]

    def learn_from(self, learner: Any, rollout: Rollout, metrics: Metrics, gradient: PyTree = ()) -> tuple[Any, Metrics]:
        return _applied(self.share, learner, rollout, metrics, gradient)


def of_one_update(metrics: Metrics, shares: int) -> Metrics:
    """Convert the merged losses of ``shares`` parts of one update to losses of that update."""
    losses = {name: x for name, x in metrics.items() if name.startswith("losses/") and isinstance(x, Mean)}
    return metrics | {name: Mean(x.sum / shares, x.count // shares) for name, x in losses.items()}


def _applied(agent: Agent, learner: Any, rollout: Rollout, metrics: Metrics, gradient: PyTree) -> tuple[Any, Metrics]:
    apply, observe = agent.algorithm.apply, agent.algorithm.observe
    assert apply is not None
    # A worker acts and computes gradients with the same parameters.
    ages = policy_lag(rollout.version, rollout.version) | gradient_staleness(learner.version, rollout.version)
    if observe is not None:
        learner = observe(learner, rollout)
    return apply(learner, gradient), metrics | ages


class AllReducedLearner(HostLearner):
    """Learner on several devices, with gradients and statistics averaged over them (Wijmans et al. 2020).

    Each device learns from its share of the environments. With on-policy algorithms the result is that of one device that learns
    from all environments, up to rounding.
    """

    on_one_device = False

    def __init__(self, agent: Agent, sampler: ActorPool, num_seeds: int) -> None:
        devices = self.devices(sampler)
        self.shared = build(agent.spec, env=agent.env, axis_name=DATA)
        check_devices(self.shared, len(devices))
        self.mesh = make_mesh({DATA: len(devices)}, devices)
        super().__init__(agent, sampler, num_seeds)

    def learn_from(self, learner: Any, rollout: Rollout, episodes: Metrics) -> tuple[Any, Metrics]:
        lag = policy_lag(learner.version, rollout.version)

        def update(learner: Any, rollout: Rollout) -> tuple[Any, Metrics]:
            learner, losses = self.shared.algorithm.update(learner, rollout)
            return learner, all_reduce(losses, DATA)

        learner, losses = self.over_devices(update, learner, rollout)
        return learner, episodes | of_one_update(losses, self.mesh.size) | lag

    def devices(self, sampler: ActorPool) -> list[jax.Device]:
        """Return the devices that learn."""
        devices = jax.local_devices()
        return devices[: shard_count(len(sampler.members), len(devices))]

    def over_devices(self, function: Callable[..., Any], learner: Any, rollout: Rollout) -> Any:
        """Apply ``function`` to each device's share. It returns a learner and metrics."""
        learner_specs = specs_of(declared_axes(learner), DATA)
        rollout_specs = specs_of(jax.tree.map(lambda axis, part: jax.tree.map(lambda _: axis, part), JOINED, rollout), DATA)
        in_specs, out_specs = (learner_specs, rollout_specs), (learner_specs, PartitionSpec())
        shared = jax.shard_map(in_order(function), mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return shared(learner, rollout)


class PartDriver(HostDriver):
    """Driver that applies the workers' gradients as they arrive. An iteration is as many gradients as there are workers, from any
    of them."""

    learner_of = PartLearner

    def _once(self, learner: HostLearner, states: AgentState, going: Any, watch: Stopwatch) -> tuple[Any, Any, Metrics]:
        pool: Any = learner.sampler
        self._ask_ahead(learner, states)
        total: Metrics | None = None
        for _ in pool.members:
            with watch("waiting"):
                part = pool.next_part()
            with watch("learning"):
                states, alive, metrics = learner.learn_alive(states, part, going)
                total = metrics if total is None else self.merge(total, metrics)
                self.found.record(part[0], np.asarray(going) & ~np.asarray(alive))
                going = np.asarray(alive)
                pool.publish(learner.policy(states.learner))
        self.pending.popleft()
        assert total is not None
        return states._replace(iteration=states.iteration + jnp.asarray(going, jnp.int32)), going, total
