"""Teachers of imitation learning: a trained policy, as a part of the agent that learns from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.agent import policy_shapes
from jaxrl.builder.attempt import show
from jaxrl.builder.config import BufferConfig
from jaxrl.builder.replay_setup import ReplaySetup
from jaxrl.builder.spec import Described, build_again
from jaxrl.builder.stand_in import stand_in
from jaxrl.envs import resolve_env
from jaxrl.optimize.learner import Learner
from jaxrl.spaces.trees import describe_space, realize_space, same_shapes, zeros
from jaxrl.types import Agent, AgentState, Array, Env, EnvLike, HostEnv, Key, Policy, PyTree, StepInput

R = TypeVar("R", bound=BufferConfig)

OF_TEACHER = 2**31 - 2
"""Random stream of the teacher's draws."""


@dataclass(frozen=True)
class Teacher:
    """A trained policy that shows which action to take.

    A spec describes it without its parameters, which are in the student's state and its checkpoints.
    """

    agent: Agent
    """The agent that was trained."""
    policy: Policy
    """Its policy; shapes alone in an agent that was built from a spec."""
    digest: str
    """SHA-256 of the policy."""

    @property
    def is_loaded(self) -> bool:
        """Return whether the policy has its parameters."""
        return not any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(self.policy))

    @property
    def initial_policy(self) -> Policy:
        """Return the policy for a student's state; without parameters, NaN in their place."""
        return jax.tree.map(_placeholder, self.policy)

    @property
    def env(self) -> Env | HostEnv:
        return self.agent.env

    def as_plain(self) -> dict[str, Any]:
        """Return a description for a spec, as JSON."""
        both = {"observation": self.env.observation_space, "action": self.env.action_space}
        described = {name: describe_space(space) for name, space in both.items()}
        # The environment is not needed, only its spaces.
        spec = {**self.agent.spec, "env": self.env.name}
        return {"teacher": {"agent": spec, "spaces": described, "digest": self.digest}}

    @classmethod
    def read(cls, plain: Described) -> Teacher:
        """Return the teacher of a description, with shapes in place of parameters.

        Raises:
          ValueError: it is not a description of a teacher, or names a part that is not trusted.
        """
        try:
            spec, described, digest = (plain.data[name] for name in ("agent", "spaces", "digest"))
            space = {name: realize_space(data) for name, data in described.items()}
            env = stand_in(str(spec["env"]), space["observation"], space["action"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"teacher is not a description that jaxrl wrote: {error!r}") from None
        agent = build_again(spec, trust=plain.trust, env=env)
        return cls(agent, policy_shapes(agent), str(digest))


@dataclass(frozen=True, kw_only=True)
class TeacherSetup(ReplaySetup[R]):
    """Setup of an algorithm with replay that learns from a teacher."""

    teacher: Teacher
    teacher_obs: Callable[[PyTree], PyTree] | None
    """Function from an observation to one of the teacher's; None: they are the same."""

    def init_student(self, key: Key, hyperparams: Any) -> Learner:
        """Initialise the learner; if the teacher is not loaded, with NaN, from which a run stops at once."""
        learner = self.init_learner(key, hyperparams)
        if self.teacher.is_loaded:
            return learner
        return learner._replace(params=jax.tree.map(lambda x: x * jnp.nan, learner.params))

    def shown(self, policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key) -> tuple[PyTree, Array]:
        """Return the teacher's carry and its greedy actions [B].

        Args:
          policy: the teacher's, from the student's state.
          key: folded for the teacher, for draws if it makes any.
        """
        key = jax.random.fold_in(key, OF_TEACHER)
        if self.teacher_obs is not None:
            inputs = inputs._replace(obs=jax.vmap(self.teacher_obs)(inputs.obs))
        carry, action, _ = self.teacher.agent.algorithm.act(policy, carry, inputs, env_id, key, explore=False)
        return carry, action


def _placeholder(x: Any) -> Any:
    if not isinstance(x, jax.ShapeDtypeStruct):
        return jnp.asarray(x)
    return jnp.full(x.shape, jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else 0, x.dtype)


def teacher_of(agent: Agent, policy: Policy) -> Teacher:
    """Return a policy of an agent as a teacher."""
    policy = jax.tree.map(np.asarray, policy)
    digest = hashlib.sha256(json.dumps(agent.spec, sort_keys=True).encode())
    for x in jax.tree.leaves(policy):
        digest.update(np.ascontiguousarray(x).tobytes())
    return Teacher(agent, policy, digest.hexdigest())


def teacher_part(env: EnvLike, parts: Mapping[str, Any]) -> Teacher | None:
    """Return the teacher among a builder's keywords, for its environment; None if it was not given.

    Raises:
      TypeError: it is not a teacher.
      ValueError: it does not fit the environment.
    """
    return None if parts["teacher"] is None else resolve_teacher(parts["teacher"], resolve_env(env), parts["teacher_obs"])


def required_teacher(builder: str, teacher: Teacher | None) -> Teacher:
    """Return the teacher. Raise TypeError without one; builders ask last, so that errors in settings come first."""
    if teacher is None:
        raise TypeError(
            f"{builder} learns from a trained policy: give it one with teacher=jaxrl.load_policy(run), or on the command line "
            "with --teacher RUN"
        )
    return teacher


def resolve_teacher(argument: Any, env: Env | HostEnv, observe: Callable[[PyTree], PyTree] | None = None) -> Teacher:
    """Check a builder's ``teacher`` keyword.

    Args:
      argument: a ``Teacher``; what has a method ``as_teacher``, such as a loaded policy; or ``(agent, state)``.
      env: the student's environment.
      observe: function from an observation of the student's environment to one of the teacher's.

    Raises:
      TypeError: it is not a teacher.
      ValueError: it sees other observations, or takes other actions, than the environment has.
    """
    teacher = _as_teacher(argument)
    if teacher.env.action_space != env.action_space:
        raise ValueError(f"the teacher takes actions of {teacher.env.action_space}, and {env.name} has {env.action_space}")
    seen, there = teacher.env.observation_space, env.observation_space
    if observe is None:
        if seen != there:
            raise ValueError(
                f"the teacher sees observations of {seen}, and {env.name} has {there}: pass teacher_obs=, a function from an "
                "observation of the environment to one of the teacher's"
            )
        return teacher
    found, wanted = jax.eval_shape(observe, _example(there)), _example(seen)
    if not same_shapes(found, wanted):
        raise ValueError(f"teacher_obs={show(observe)} must return observations of {seen}, the teacher's; it returns {found}")
    return teacher


def _example(space: spaces.Space) -> PyTree:
    return jax.eval_shape(lambda: zeros(space))


def _as_teacher(argument: Any) -> Teacher:
    if isinstance(argument, Teacher):
        return argument
    if isinstance(argument, Described):
        return Teacher.read(argument)
    if hasattr(argument, "as_teacher"):
        return argument.as_teacher()
    if isinstance(argument, tuple) and len(argument) == 2 and isinstance(argument[0], Agent):
        agent, state = argument
        if isinstance(state, AgentState) and not jnp.ndim(state.iteration):
            return teacher_of(agent, agent.algorithm.policy(state.learner))
    raise TypeError(
        f"teacher={show(argument)} must be a trained policy, as jaxrl.load_policy(run) returns, or (agent, state) of one seed"
    )
