"""Main function of an ``ActorPool``'s worker processes: act with parameters from shared memory, and write rollouts to it."""

from __future__ import annotations

import os
import traceback
from multiprocessing.connection import Connection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.agent import state_shapes
from jaxrl.builder.spec import build
from jaxrl.envs.host import error_text
from jaxrl.envs.subprocess.child import attend
from jaxrl.envs.subprocess.shared_memory import received
from jaxrl.runtime.actors import messages
from jaxrl.runtime.actors.central_inference import with_threads
from jaxrl.runtime.actors.messages import POLICY, PROGRESS, ROLLOUT, Collect, Filled, RolloutSegment, WorkerJob
from jaxrl.runtime.actors.stragglers import CutSampler
from jaxrl.runtime.samplers.rollout_buffer import RolloutBuffer
from jaxrl.runtime.samplers.sampler import ACTED, CAME, INPUTS, HostSampler
from jaxrl.runtime.system.devices import enable_compilation_cache
from jaxrl.types import Key, Metrics, Policy, PyTree
from jaxrl.xla.seed_axis import over_seeds


class Actor:
    """A worker's share of the environments of all seeds, and the agent that acts in them."""

    def __init__(self, connection: Connection, job: WorkerJob) -> None:
        self.connection, self.job = connection, job
        overrides = {} if job.env is None else {"env": job.env()}
        agent = build(job.spec, trust=job.trust, **overrides)
        self.agent = agent._replace(env=with_threads(agent, job.num_threads))
        mine = (self.agent, job.seeds, job.offset + job.first_id, job.num_envs)
        self.sampler = CutSampler(*mine, self.is_due) if job.cut_short else HostSampler(*mine)
        policy = jax.eval_shape(self.agent.algorithm.policy, state_shapes(self.agent).learner)
        self.policies = jax.tree.map(lambda x: jax.ShapeDtypeStruct((len(job.seeds), *x.shape), x.dtype), policy)
        learn: Any = self.agent.algorithm.gradients if job.gradients else lambda policy, rollout: ((), {})
        self.gradients = jax.jit(over_seeds(len(job.seeds))(learn))
        self.memory: dict[tuple[str, int], Any] = {}
        self.after, self.number = job.after, 0

    def attach(self, segment: RolloutSegment) -> None:
        """Map the shared memory that follows on the connection."""
        arrays = received(self.connection, segment.layout.num_bytes).arrays(segment.layout)
        self.memory[segment.kind, segment.number] = jax.tree.unflatten(jax.tree.structure(segment.shapes), arrays)

    def collect(self, call: Collect) -> None:
        watch = self.sampler.watch
        before, self.number = dict(watch.seconds), call.number
        leaves = [np.array(x) for x in self.memory[POLICY, call.policy]]
        policy = jax.device_put(messages.policy_like(self.policies, leaves))  # otherwise each row would transfer it
        key = jax.random.wrap_key_data(jnp.asarray(call.key_data))
        if (ROLLOUT, call.rollout) in self.memory:
            losses = self.fill(self.rows(call.rollout), policy, key)
        else:  # the first rollout determines the shapes
            mine, losses = self.first_rows(policy, key)
            self.connection.send(messages.Shapes(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), mine)))
            while (ROLLOUT, call.rollout) not in self.memory:
                self.attach(self.connection.recv())
            jax.tree.map(np.copyto, self.rows(call.rollout), mine)
        spent = {part: seconds - before[part] for part, seconds in watch.seconds.items()}
        rows = self.sampler.collected if isinstance(self.sampler, CutSampler) else self.sampler.num_rows
        self.connection.send(messages.Done(spent, losses, rows))

    def rows(self, number: int) -> Filled:
        """Return this worker's part of a rollout in shared memory."""
        return messages.part_of(self.memory[ROLLOUT, number], self.job)

    def first_rows(self, policy: Policy, key: Key) -> tuple[Filled, Metrics]:
        """Collect a rollout in private memory. Return it, and the metrics as ``fill`` does."""
        buffer = RolloutBuffer(self.sampler.lead, self.sampler.num_rows, self.sampler.num_envs)
        carry = self.sampler.fill(buffer, policy, key, on_row=self.tell)
        rows = Filled(buffer.read(INPUTS), buffer.read(ACTED), buffer.read(CAME), _in_numpy(carry), ())
        gradient, losses = self.learn(rows, policy)
        return rows._replace(gradient=gradient), losses

    def fill(self, rows: Filled, policy: Policy, key: Key) -> Metrics:
        """Fill a rollout in shared memory, with its gradient if required, and return the gradient's metrics.

        The first rollout of a worker that replaces another begins with an invalid row, before its episodes begin. This row holds
        the inputs that the previous worker's last step led to.
        """
        arrays = {INPUTS: rows.inputs, ACTED: rows.acted, CAME: rows.came}
        buffer = RolloutBuffer(self.sampler.lead, self.sampler.num_rows, self.sampler.num_envs, arrays)
        first = 0
        if self.after is not None:
            at, first, after, self.after = (slice(None), 0), 1, self.after, None
            buffer.write(INPUTS, at, after)
            for name in (ACTED, CAME):
                buffer.blank(name, at)
        jax.tree.map(np.copyto, rows.carry, _in_numpy(self.sampler.fill(buffer, policy, key, first, self.tell)))
        gradient, losses = self.learn(rows, policy)
        jax.tree.map(np.copyto, rows.gradient, gradient)
        return losses

    def learn(self, rows: Filled, policy: Policy) -> tuple[PyTree, Metrics]:
        """Return the gradient of a rollout, [num_seeds, 1, ...], and its metrics; empty if the learner computes gradients."""
        if not self.job.gradients:
            return (), {}
        with self.sampler.watch("learning"):
            rollout = messages.rollout_of(rows, np.asarray(policy.version), self.job.first_id)
            gradient, losses = jax.block_until_ready(self.gradients(policy, rollout))
        return jax.tree.map(lambda x: np.asarray(x)[:, None], gradient), _in_numpy(losses)

    def tell(self) -> None:
        """Report one more row."""
        self.memory[PROGRESS, 0][0][self.job.worker] += 1

    def is_due(self) -> bool:
        """Return True if enough other workers have finished the current rollout."""
        return bool(self.number < self.memory[PROGRESS, 0][1][0])


def _in_numpy(tree: PyTree) -> Any:
    return jax.tree.map(np.asarray, tree)


def serve(connection: Connection) -> None:
    """Handle messages until ``CLOSE``."""
    actor: Any = None
    try:
        job = connection.recv()
        if job.pinned:
            os.sched_setaffinity(0, job.pinned)
        enable_compilation_cache()
        actor = Actor(connection, job)
        connection.send(messages.Ready())
        while (message := connection.recv()) != messages.CLOSE:
            (actor.attach if isinstance(message, RolloutSegment) else actor.collect)(message)
    except EOFError:
        pass  # the learner's process has ended
    except Exception as error:
        connection.send(messages.Failed(error_text(error), traceback.format_exc()))
    finally:
        if actor is not None:
            actor.sampler.close()


if __name__ == "__main__":
    attend(serve)
