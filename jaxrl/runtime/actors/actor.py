"""``Actor``: a worker's share of the environments of all seeds, and the agent that acts in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.agent import policy_shapes
from jaxrl.builder.spec import build
from jaxrl.runtime.actors import messages
from jaxrl.runtime.actors.central_inference import with_threads
from jaxrl.runtime.actors.messages import Done, Filled, WorkerJob
from jaxrl.runtime.actors.stragglers import CutSampler
from jaxrl.runtime.samplers.rollout_buffer import RolloutBuffer
from jaxrl.runtime.samplers.sampler import ACTED, CAME, INPUTS, HostSampler
from jaxrl.types import Key, Metrics, Policy, PyTree
from jaxrl.xla.seed_axis import over_seeds

PlaceFn = Callable[[Filled], Filled]
"""Function that returns the arrays for an actor's rollouts, like those of its first."""


class Actor:
    """Acts in a worker's environments, in whichever process and with whichever memory."""

    def __init__(self, job: WorkerJob, on_row: Callable[[], object], is_due: Callable[[int], bool]) -> None:
        """
        Args:
          on_row: called after each row.
          is_due: returns whether enough other workers have finished the rollout of that number.
        """
        self.job, self.on_row = job, on_row
        overrides = {} if job.env is None else {"env": job.env()}
        agent = build(job.spec, trust=job.trust, **overrides)
        self.agent = agent._replace(env=with_threads(agent, job.num_threads))
        mine = (self.agent, job.seeds, job.offset + job.first_id, job.num_envs)
        self.sampler = CutSampler(*mine, lambda: is_due(self.number)) if job.cut_short else HostSampler(*mine)
        policy = policy_shapes(self.agent)
        self.policies = jax.tree.map(lambda x: jax.ShapeDtypeStruct((len(job.seeds), *x.shape), x.dtype), policy)
        learn: Any = self.agent.algorithm.gradients if job.gradients else lambda policy, rollout: ((), {})
        self.gradients = jax.jit(over_seeds(len(job.seeds))(learn))
        self.after, self.number = job.after, 0

    def collect(
        self, number: int, key_data: np.ndarray, leaves: Sequence[np.ndarray], rows: Filled | None, place: PlaceFn
    ) -> Done:
        """Collect a rollout.

        Args:
          number: number of the rollout, in the order of requests.
          key_data: data of the iteration's keys, [num_seeds, ...].
          leaves: the policy; see ``messages.plain_leaves``.
          rows: arrays that it fills; None if the shapes are not yet known.
          place: returns such arrays for the first rollout, from what was collected.
        """
        watch = self.sampler.watch
        before, self.number = dict(watch.seconds), number
        # Otherwise each row would transfer the policy. It is a copy, as JAX may refer to the memory of an array.
        policy = jax.device_put(messages.policy_like(self.policies, [np.array(x) for x in leaves]))
        key = jax.random.wrap_key_data(jnp.asarray(key_data))
        if rows is not None:
            losses = self.fill(rows, policy, key)
        else:  # the first rollout determines the shapes
            mine, losses = self.first_rows(policy, key)
            jax.tree.map(np.copyto, place(mine), mine)
        spent = {part: seconds - before[part] for part, seconds in watch.seconds.items()}
        collected = self.sampler.collected if isinstance(self.sampler, CutSampler) else self.sampler.num_rows
        return Done(spent, losses, collected)

    def first_rows(self, policy: Policy, key: Key) -> tuple[Filled, Metrics]:
        """Collect a rollout in private memory. Return it, and the metrics as ``fill`` does."""
        buffer = RolloutBuffer(self.sampler.lead, self.sampler.num_rows, self.sampler.num_lanes)
        carry = self.sampler.fill(buffer, policy, key, on_row=self.on_row)
        rows = Filled(buffer.read(INPUTS), buffer.read(ACTED), buffer.read(CAME), _in_numpy(carry), ())
        gradient, losses = self.learn(rows, policy)
        return rows._replace(gradient=gradient), losses

    def fill(self, rows: Filled, policy: Policy, key: Key) -> Metrics:
        """Fill a rollout in shared memory, with its gradient if required, and return the gradient's metrics.

        The first rollout of a worker that replaces another begins with an invalid row, before its episodes begin. This row holds
        the inputs that the previous worker's last step led to.
        """
        arrays = {INPUTS: rows.inputs, ACTED: rows.acted, CAME: rows.came}
        buffer = RolloutBuffer(self.sampler.lead, self.sampler.num_rows, self.sampler.num_lanes, arrays)
        first = 0
        if self.after is not None:
            at, first, after, self.after = (slice(None), 0), 1, self.after, None
            buffer.write(INPUTS, at, after)
            for name in (ACTED, CAME):
                buffer.blank(name, at)
        jax.tree.map(np.copyto, rows.carry, _in_numpy(self.sampler.fill(buffer, policy, key, first, self.on_row)))
        gradient, losses = self.learn(rows, policy)
        jax.tree.map(np.copyto, rows.gradient, gradient)
        return losses

    def learn(self, rows: Filled, policy: Policy) -> tuple[PyTree, Metrics]:
        """Return the gradient of a rollout, [num_seeds, 1, ...], and its metrics; empty if the learner computes gradients."""
        if not self.job.gradients:
            return (), {}
        with self.sampler.watch("learning"):
            rollout = messages.rollout_of(rows, np.asarray(policy.version), self.job.lanes.start)
            gradient, losses = jax.block_until_ready(self.gradients(policy, rollout))
        return jax.tree.map(lambda x: np.asarray(x)[:, None], gradient), _in_numpy(losses)

    def close(self) -> None:
        self.sampler.close()


def _in_numpy(tree: PyTree) -> Any:
    return jax.tree.map(np.asarray, tree)
