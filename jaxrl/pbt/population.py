"""``Population``: the state of a population, its iterations, and its generations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.metrics import all_reduce, only_if, reduce, scalar
from jaxrl.settings.space import COMPLEMENT, Dimension
from jaxrl.settings.validation import merge_hyperparams, present
from jaxrl.training import freezing
from jaxrl.types import Agent, AgentState, Array, Key, Mean, Metrics, Policy, PyTree
from jaxrl.xla.private_jax import is_traced
from jaxrl.xla.seed_axis import any_seed

RETURN = "charts/episodic_return"
DECAY = 0.9
"""Weight of the earlier iterations in a member's score, per iteration in which an episode ended."""
FACTORS = (0.8, 1.25)
"""Factors by which a hyperparameter with a logarithmic range changes."""
STEP = 0.2
"""Share of a linear range by which others change."""
RESAMPLED = 0.25
"""Probability that a hyperparameter is drawn anew in place of a change."""
STREAM = 0x706274
"""Number folded into the key of a population for its own draws, far from those of the members."""


class Lineage(NamedTuple):
    """Record of the generations, up to the number for which there is room."""

    parent: Array
    """i32[G, M]: member whose learner a member has from this generation on, itself if it kept its own."""
    values: Array
    """f32[G, M, H]: hyperparameters from this generation on, in the order of the space."""


class PopulationState(NamedTuple):
    """Learner state of a population of M members."""

    members: Any
    """Learner states, [M, ...], without their hyperparameters."""
    hyperparams: Any
    """[M] each. ``total_steps`` counts the rows of the whole population."""
    score: Array
    """f32[M]: decaying sum of mean training returns."""
    weight: Array
    """f32[M]: the same sum of ones. 0: no episode has ended yet."""
    alive: Array
    """bool[M]: False for members that have diverged."""
    lineage: Lineage
    generation: Array
    """i32[]: number of generations so far."""

    @property
    def params(self) -> PyTree:
        return self.members.params

    @property
    def env_axes(self) -> Mapping[str, int]:
        return dict.fromkeys(("members", "hyperparams", "score", "weight", "alive"), 0)


class Population(NamedTuple):
    """The functions of a population."""

    agent: Agent
    space: tuple[Dimension, ...]
    members: int
    ready: int
    quantile: float
    generations: int
    """Number of generations for which the lineage has room."""
    axis_name: str | None

    # ------------------------------------------------------------------------------------------------------------------- states

    def init(self, key: Key, hyperparams: Any = None, env_params: PyTree = None) -> AgentState:
        """Return the states of all members, each after its warm-up."""
        shared = merge_hyperparams(self.agent.hyperparams, hyperparams)
        self._check_shared(hyperparams)
        drawn = self._drawn(key, shared)
        one = lambda key, each: self.agent.init(key, self._own(each), env_params)  # noqa: E731
        states = jax.vmap(one)(self._keys(key, jnp.arange(self.members)), drawn)
        learner = self._learner(states.learner, drawn)
        parameters = env_params if env_params is not None else getattr(self.agent.env, "params", ())
        rows = states.warmup_rows.sum()
        return AgentState(learner, states.actor, parameters, key, states.iteration[0], rows)

    def _check_shared(self, hyperparams: Any) -> None:
        """Raise ValueError for a hyperparameter of the space, which members do not share.

        Values for all hyperparameters, such as the agent's own NamedTuple, may contain it with the agent's value.
        """
        if hyperparams is None:
            return
        given, own = hyperparams if isinstance(hyperparams, Mapping) else present(hyperparams), present(self.agent.hyperparams)
        for d in self.space:
            if d.name not in given:
                continue
            value = given[d.name]
            same = is_traced(value) or np.array_equal(np.float32(value), np.float32(own[d.name]))
            if not (same and own.keys() <= given.keys()):
                raise ValueError(
                    f"hyperparams[{d.name!r}] has no effect, because {d.name} is in the space of this population, and each "
                    "member draws its own: leave it out, or make the population with another space"
                )

    def init_learner(self, key: Key, hyperparams: Any) -> PopulationState:
        drawn = self._drawn(key, hyperparams)
        learners = jax.vmap(lambda key, each: self.agent.algorithm.init(key, self._own(each)))(
            self._keys(key, jnp.arange(self.members)), drawn
        )
        return self._learner(learners, drawn)

    def _learner(self, learners: Any, drawn: Any) -> PopulationState:
        zeros = jnp.zeros(self.members)
        record = Lineage(
            jnp.broadcast_to(jnp.arange(self.members, dtype=jnp.int32), (self.generations, self.members)),
            jnp.zeros((self.generations, self.members, len(self.space))).at[0].set(self._values(drawn)),
        )
        alive = jnp.ones(self.members, bool)
        return PopulationState(learners._replace(hyperparams=()), drawn, zeros, zeros, alive, record, jnp.zeros((), jnp.int32))

    def _drawn(self, key: Key, shared: Any) -> Any:
        """Return the first hyperparameters of all members, those of the space drawn uniformly."""
        wide = jax.tree.map(lambda x: jnp.broadcast_to(x, self.members), shared)
        key = jax.random.fold_in(key, STREAM)
        drawn = {d.name: self._uniform(d, jax.random.fold_in(key, i), (self.members,)) for i, d in enumerate(self.space)}
        return wide._replace(**drawn)

    @staticmethod
    def _uniform(d: Dimension, key: Key, shape: tuple[int, ...]) -> Array:
        low, high = d.line
        return d.from_line(jax.random.uniform(key, shape, minval=low, maxval=high), jnp)

    def _own(self, hyperparams: Any) -> Any:
        """Return a member's hyperparameters as its algorithm uses them: with its own rows as the length of the run."""
        if "total_steps" not in getattr(hyperparams, "_fields", ()):
            return hyperparams
        return hyperparams._replace(total_steps=hyperparams.total_steps / self.members)

    def _keys(self, key: Key, numbers: Array) -> Key:
        return jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)

    def _values(self, hyperparams: Any) -> Array:
        return jnp.stack([getattr(hyperparams, d.name) for d in self.space], -1)

    # --------------------------------------------------------------------------------------------------------------------- step

    def step(self, state: AgentState) -> tuple[AgentState, Metrics]:
        """Step all members, and end the generation if it is time."""
        learner, numbers = state.learner, self._numbers(state)

        stepping: Any = freezing(self.agent)

        def one(key: Key, member: Any, hyperparams: Any, actor: Any, alive: Array) -> tuple[Any, Any, Array, Metrics]:
            own = member._replace(hyperparams=self._own(hyperparams))
            before = AgentState(own, actor, state.env_params, key, state.iteration, jnp.zeros((), jnp.int32))
            (after, alive), metrics = stepping.step((before, alive))
            # Without the losses of the iteration in which a member diverges: the others continue.
            return after.learner._replace(hyperparams=()), after.actor, alive, only_if(alive, metrics)

        # Those of state.key itself are used by init, which splits them.
        keys = self._keys(jax.random.fold_in(state.key, STREAM + 2), numbers)
        members, actor, alive, metrics = jax.vmap(one)(keys, learner.members, learner.hyperparams, state.actor, learner.alive)
        learner = self._scored(learner._replace(members=members, alive=alive), metrics)
        iteration = state.iteration + 1
        is_due = iteration % self.ready == 0

        def end_generation(learner: PopulationState) -> PopulationState:
            new = self._next_generation(learner, state.key, numbers)
            return jax.tree.map(lambda x, y: jnp.where(is_due, x, y), new, learner)

        # Without any_seed, a vmap over populations would copy all learners in each iteration.
        learner = jax.lax.cond(any_seed(is_due), end_generation, lambda x: x, learner)
        measured = {**reduce(metrics), **self._measured(learner)}
        return state._replace(learner=learner, actor=actor, iteration=iteration), all_reduce(measured, self.axis_name)

    def _numbers(self, state: AgentState) -> Array:
        """Return the numbers of the members on this device."""
        here = state.learner.alive.shape[0]
        first = 0 if self.axis_name is None else jax.lax.axis_index(self.axis_name) * here
        return first + jnp.arange(here)

    @staticmethod
    def _scored(learner: PopulationState, metrics: Metrics) -> PopulationState:
        returns = metrics[RETURN]
        assert isinstance(returns, Mean)
        ended = returns.count > 0
        mean = returns.sum / jnp.maximum(returns.count, 1)
        score = jnp.where(ended, DECAY * learner.score + (1 - DECAY) * mean, learner.score)
        weight = jnp.where(ended, DECAY * learner.weight + (1 - DECAY), learner.weight)
        return learner._replace(score=score, weight=weight)

    def _measured(self, learner: PopulationState) -> Metrics:
        chosen = {f"pbt/{d.name}": getattr(learner.hyperparams, d.name) for d in self.space}
        alive = {"pbt/alive": learner.alive.astype(jnp.float32)}
        return {name: scalar(value) for name, value in (chosen | alive).items()}

    # --------------------------------------------------------------------------------------------------------------- generations

    def _next_generation(self, learner: PopulationState, key: Key, numbers: Array) -> PopulationState:
        """Exploit and explore. Each device draws the same for all members, and keeps its own."""
        nothing: Any = ()
        everyone = self._gathered(learner._replace(lineage=nothing, generation=nothing))
        generation = learner.generation + 1
        key = jax.random.fold_in(jax.random.fold_in(key, STREAM + 1), generation)
        parent = self._parents(mean_scores(everyone), everyone.alive, key)
        copied, kept = parent != jnp.arange(self.members), jnp.arange(self.members)
        explored = self._explored(jax.tree.map(lambda x: x[parent], everyone.hyperparams), copied, key)
        values, room = self._values(explored), learner.lineage.parent.shape[0]
        place = jnp.where(generation < room, generation, room)  # beyond the end nothing is written
        lineage = Lineage(
            learner.lineage.parent.at[place].set(parent, mode="drop"),
            learner.lineage.values.at[place].set(values, mode="drop"),
        )
        taken = everyone._replace(hyperparams=explored, alive=everyone.alive[parent])
        for name in ("members", "score", "weight"):
            taken = taken._replace(**{name: jax.tree.map(lambda x: x[jnp.where(copied, parent, kept)], getattr(taken, name))})
        members = taken.members._replace(key=everyone.members.key)
        taken = taken._replace(members=self._marked(members, copied))
        return jax.tree.map(lambda x: x[numbers], taken)._replace(lineage=lineage, generation=generation)

    def _marked(self, members: Any, copied: Array) -> Any:
        """Mark in the replay of copies that their next rows, which come from other environments, do not follow the parent's."""
        if (mark := self.agent.algorithm.mark_discontinuity) is None:
            return members
        only = lambda new, old: new if new is old else jnp.where(copied.reshape(-1, *[1] * (new.ndim - 1)), new, old)  # noqa: E731
        return jax.tree.map(only, jax.vmap(mark)(members), members)

    def _gathered(self, tree: Any) -> Any:
        """Return the values of all members."""
        if self.axis_name is None:
            return tree
        return jax.tree.map(lambda x: jax.lax.all_gather(x, self.axis_name, tiled=True), tree)

    def _parents(self, scores: Array, alive: Array, key: Key) -> Array:
        """Return the member that each member continues from, i32[M].

        Args:
          scores: f32[M]; NaN where no episode has ended.
        """
        size, own = max(1, int(self.quantile * self.members)), jnp.arange(self.members, dtype=jnp.int32)
        low = jnp.where(alive, jnp.where(jnp.isnan(scores), jnp.inf, scores), -jnp.inf)
        high = jnp.where(alive & ~jnp.isnan(scores), scores, -jnp.inf)
        rank = jnp.argsort(jnp.argsort(low))
        best = jnp.argsort(-high)[:size]
        drawn = best[jax.random.randint(key, (self.members,), 0, size)]
        replaced = (rank < size) & (low < high[drawn])
        return jnp.where(replaced, drawn, own).astype(jnp.int32)

    def _explored(self, hyperparams: Any, copied: Array, key: Key) -> Any:
        """Change the hyperparameters of the members that were copied, independently of each other."""
        changed = {}
        for i, d in enumerate(self.space):
            coin, again, fresh = jax.random.split(jax.random.fold_in(key, 1 + i), 3)
            value, up = getattr(hyperparams, d.name), jax.random.bernoulli(coin, shape=copied.shape)
            step = jnp.where(up, *reversed(FACTORS)) if d.log else jnp.where(up, STEP, -STEP) * (d.high - d.low)
            moved = 1 - (1 - value) * step if d.log == COMPLEMENT else value * step if d.log else value + step
            resampled = jax.random.bernoulli(again, RESAMPLED, copied.shape)
            new = jnp.where(resampled, self._uniform(d, fresh, copied.shape), jnp.clip(moved, d.low, d.high))
            changed[d.name] = jnp.where(copied, new, value)
        return hyperparams._replace(**changed)

    # ------------------------------------------------------------------------------------------------------------------- policies

    def policy(self, learner: PopulationState) -> Policy:
        """Return the policy of the member with the best score; of the first if no episode has ended."""
        best = best_member(learner)
        member = jax.tree.map(lambda x: x[best], (learner.members, learner.hyperparams))
        return self.agent.algorithm.policy(member[0]._replace(hyperparams=self._own(member[1])))


def mean_scores(learner: PopulationState) -> Array:
    """Return the bias-corrected scores of the members, f32[M]; NaN where no episode has ended."""
    return jnp.where(learner.weight > 0, learner.score / jnp.where(learner.weight > 0, learner.weight, 1), jnp.nan)


def best_member(learner: PopulationState) -> Array:
    """Return the number of the member with the best score, i32[]."""
    scores = mean_scores(learner)
    return jnp.argmax(jnp.where(learner.alive & ~jnp.isnan(scores), scores, -jnp.inf))
