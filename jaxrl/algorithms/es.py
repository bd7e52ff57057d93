"""Evolution strategies: OpenAI's (Salimans et al. 2017), augmented random search (Mania et al. 2018), and those of evosax.

Reads top to bottom: settings, state, members, update, builder. How members act is in
``jaxrl.algorithms.common.evolution.members``; noise, shaping and strategies are in ``jaxrl.evolution``, and
``jaxrl.rollout.play`` plays the episodes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax
from gymnasium import spaces

from jaxrl.algorithms.common.evolution.members import Population, act, members
from jaxrl.builder.config import AgentConfig
from jaxrl.builder.keywords import agent_keywords, split_keywords, with_keywords_of
from jaxrl.builder.networks import check_greedy_policy, check_low_rank
from jaxrl.builder.prepare import prepare
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.envs.step_limits import step_limit
from jaxrl.evolution.evosax_adapter import Evosax, EvosaxPopulation, check_size
from jaxrl.evolution.gradient import descent_gradient
from jaxrl.evolution.noise import LowRankNoise, NormalNoise, SignNoise, gathered
from jaxrl.evolution.strategies import ARS, OpenAI
from jaxrl.metrics import only_if
from jaxrl.models import greedy_policy
from jaxrl.optimize import OptimizerFn, adam, sgd
from jaxrl.optimize.learner import Learner
from jaxrl.rollout.running_statistics import Statistics, add_episodes, init_statistics
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, CountOrZero, NonNegative, Positive, PositiveUnit, Range
from jaxrl.types import Agent, Algorithm, Array, Env, EnvLike, Episodes, HostEnv, Key, Metrics, Policy, PyTree

MOST_ROWS = 2**31 - 1


@dataclass(frozen=True)
class ESConfig(AgentConfig):
    """Structural settings of evolution strategies."""

    members: Count = 64
    """Members of a generation, N; an even number."""
    episodes: Count = 1
    """Episodes of each member, whose mean return is its fitness."""
    horizon: CountOrZero = 0
    """Rows at which episodes are stopped; their return up to there counts. 0: the environment's step limit."""
    noise: NormalNoise | SignNoise | LowRankNoise = NormalNoise()
    """Distribution of the members around their mean; that of ``Evosax`` is its own."""
    strategy: OpenAI | ARS | Evosax = OpenAI()
    """How fitness becomes a step."""
    normalize_observations: bool = True
    """Normalise observations with their running mean and standard deviation, which a whole generation shares."""
    anneal: bool = False
    """Anneal the learning rate linearly to 0 at ``total_steps``."""

    @property
    def num_envs(self) -> int:
        return self.members * self.episodes

    @property
    def rollout_length(self) -> int:
        return self.horizon

    @property
    def size_names(self) -> tuple[str, ...]:
        return ("members", "episodes", "horizon")

    @property
    def optimizer(self) -> OptimizerFn:
        return sgd if isinstance(self.strategy, ARS) else adam

    def for_env(self, env: Env | HostEnv) -> Self:
        if self.horizon:
            return self
        if (limit := step_limit(env)) is None:
            raise ValueError(f"horizon must be given for {env.name}, which has no step limit: use horizon=1000")
        return dataclasses.replace(self, horizon=limit)

    def check(self, *, recurrent: bool = False) -> None:
        if isinstance(self.strategy, Evosax):
            if self.noise != ESConfig.noise:
                raise ValueError(f"noise={self.noise} has no effect with strategy={self.strategy}, which draws its own")
        elif self.members % 2:
            raise ValueError(f"members={self.members} must be even: members are pairs with opposite noise")
        super().check(recurrent=recurrent)


class ESHyperparams(NamedTuple):
    """Hyperparameters of ES: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: NonNegative = 3e-2
    """Step size of Adam, or of gradient ascent with ``ARS``; 0 disables learning, as a control."""
    sigma: Positive = 0.1
    """Standard deviation σ of the members' parameters."""
    sigma_decay: PositiveUnit = 1.0
    """Factor on ``sigma`` after each generation."""
    weight_decay: NonNegative = 0.005
    """Weight of ½‖θ‖² in the loss."""
    adam_b1: shared.AdamB1 = 0.9
    reward_shift: Annotated[float, Range()] = 0.0
    """Subtract this from each reward of the fitness, such as a bonus for survival (Mania et al. 2018, section 4.1)."""
    max_env_steps: Annotated[float, Range(0, MOST_ROWS, integral=True)] = 0.0
    """Stop learning after the generation in which this number of rows was played; 0 for no limit. Unlike ``total_steps``, it
    counts rows that were played, not those that ``horizon`` allows."""
    total_steps: shared.TotalSteps = 0.0


# ----------------------------------------------------------------------------------------------------------------------- state


class ESLearner(Learner):
    """A ``Learner`` with the number of rows that were played."""

    rows: Array
    """i32[]; at most ``MOST_ROWS``."""


def init(setup: AlgorithmSetup[ESConfig], key: Key, hyperparams: ESHyperparams) -> ESLearner:
    observations = setup.observation_space if setup.config.normalize_observations else None
    learner = setup.init_learner(key, hyperparams, init_statistics(observations, None))
    if isinstance(strategy := setup.config.strategy, Evosax):
        learner = learner._replace(opt_state=evosax_population(setup, strategy, learner).init(setup.update_key(learner)))
    return ESLearner(**learner._asdict(), rows=jnp.zeros((), jnp.int32))


def remaining_rows(setup: AlgorithmSetup[ESConfig], learner: ESLearner) -> Array:
    limit = jnp.minimum(learner.hyperparams.max_env_steps, MOST_ROWS - 127).astype(jnp.int32)  # the largest f32 below 2**31
    return jnp.where(limit > 0, jnp.maximum(limit - learner.rows, 0), MOST_ROWS)


# --------------------------------------------------------------------------------------------------------------------- members


def policy(setup: AlgorithmSetup[ESConfig], learner: ESLearner) -> Policy:
    key, hp = setup.update_key(learner), setup.current(learner)
    if isinstance(strategy := setup.config.strategy, Evosax):
        drawn, _ = evosax_population(setup, strategy, learner).ask(key, learner.opt_state, learner.version)
        return Policy(learner.params, learner.statistics, drawn, learner.version)
    sigma = hp.sigma * hp.sigma_decay ** learner.version.astype(jnp.float32)
    population = Population(jax.random.key_data(key), sigma)
    return Policy(learner.params, learner.statistics, population, learner.version)


# ---------------------------------------------------------------------------------------------------------------------- update


def learn_from(setup: AlgorithmSetup[ESConfig], learner: ESLearner, episodes: Episodes) -> tuple[ESLearner, Metrics]:
    """Learn from the fitness of all members of a generation."""
    config, hp, axis_name = setup.config, setup.current(learner), setup.axis_name
    fitness = episodes.episodic_return - hp.reward_shift * episodes.episodic_length
    fitness = fitness.reshape(-1, config.episodes).mean(1)
    fitness = gathered(fitness, axis_name)
    rows, moments = gathered((episodes.episodic_length, episodes.moments), axis_name)

    if isinstance(config.strategy, Evosax):
        params, opt_state, metrics = tell(setup, config.strategy, learner, fitness)
    else:
        params, opt_state, metrics = descend(setup, config.strategy.weights(fitness), learner)

    played, statistics = rows.sum(), learner.statistics
    if statistics.observations:
        statistics = Statistics(add_episodes(statistics.observations, moments), ())
    metrics["charts/parameter_norm"] = optax.tree.norm(params)
    total = jnp.where(learner.rows > MOST_ROWS - played, MOST_ROWS, learner.rows + played)
    fields = {"params": params, "opt_state": opt_state, "statistics": statistics, "rows": total}
    new, logged = setup.updated(learner, hp, metrics, **fields)
    goes_on = remaining_rows(setup, learner) > 0
    return jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), new, learner), only_if(goes_on, logged)


def descend(setup: AlgorithmSetup[ESConfig], weights: Array, learner: ESLearner) -> tuple[PyTree, PyTree, dict[str, Array]]:
    """Take one step along −Σ_m w_m ε_m / (N σ) + weight_decay · θ, with weights w of the members' fitness."""
    config, hp = setup.config, setup.current(learner)
    population = policy(setup, learner).exploration
    key, sigma = population.key, population.sigma
    gradient = descent_gradient(config.noise, key, sigma, weights, learner.params, hp.weight_decay, setup.axis_name)
    params, opt_state = setup.descent(hp, learner.params).apply(gradient, learner.params, learner.opt_state)
    return params, opt_state, {"losses/grad_norm": optax.tree.norm(gradient), "charts/sigma": sigma}


def tell(
    setup: AlgorithmSetup[ESConfig], strategy: Evosax, learner: ESLearner, fitness: Array
) -> tuple[PyTree, PyTree, dict[str, Array]]:
    """Tell an algorithm of evosax the fitness of the members that it asked for."""
    population, key = evosax_population(setup, strategy, learner), setup.update_key(learner)
    drawn, state = population.ask(key, learner.opt_state, learner.version)
    state, params = population.tell(key, state, learner.version, drawn, fitness)
    return params, state, {"charts/sigma": jnp.mean(state.std)} if hasattr(state, "std") else {}


def evosax_population(setup: AlgorithmSetup[ESConfig], strategy: Evosax, learner: Learner) -> EvosaxPopulation:
    hp = setup.current(learner)
    optimizer = optax.chain(optax.add_decayed_weights(hp.weight_decay), setup.optimizer(hp))
    return EvosaxPopulation(strategy, setup.config.members, learner.params, hp.sigma, hp.sigma_decay, optimizer)


# --------------------------------------------------------------------------------------------------------------------- builder


def make_algorithm(setup: AlgorithmSetup[ESConfig]) -> Algorithm:
    """Return ES as an ``Algorithm``, bound to spaces but not to an environment."""
    plays: dict[str, Any] = {"init": init, "policy": policy, "act": act, "members": members}
    return setup.algorithm(**plays, learn_from=learn_from, remaining_rows=remaining_rows)


def check_evosax(setup: AlgorithmSetup[ESConfig], strategy: Evosax) -> None:
    """Raise an error if evosax is not installed, or refuses the settings, or if the population is too large."""
    hyperparams = ESHyperparams()
    learner = jax.eval_shape(lambda key: setup.init_learner(key, hyperparams), jax.random.key(0))
    check_size(strategy, setup.config.members, sum(x.size for x in jax.tree.leaves(learner.params)))
    try:
        jax.eval_shape(lambda key: init(setup, key, hyperparams), jax.random.key(0))
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(f"strategy=Evosax({strategy.algorithm!r}) with members={setup.config.members}: {error}") from error


@with_keywords_of(agent_keywords)
def make_es(env: EnvLike, **keywords: Any) -> Agent:
    """Evolution strategies (Salimans et al. 2017; Mania et al. 2018), for Discrete, MultiDiscrete and Box actions.

    An iteration is a generation: ``members`` networks around the mean play whole episodes from the same initial states, and the
    mean moves towards the better ones. ``evaluate`` and ``load_policy`` play the mean.

    Args:
      model: arguments of ``jaxrl.models.greedy_policy``, such as ``{"hidden_sizes": (32, 32)}``, or ``()`` for a linear policy;
        or a Model whose outputs are ``Categorical`` or ``MultiCategorical`` or, for a Box, actions f32[..., d] in [−1, 1]; or a
        function of (observation_space, action_space) that returns one. Default: an MLP of 2×64, tanh, for vectors.
      optimizer: hyperparams -> optax transformation, or a transformation itself; default: Adam, or with ``ARS`` gradient
        descent.
    """
    settings, parts = split_keywords(make_es, keywords)
    kinds = (spaces.Discrete, spaces.MultiDiscrete, spaces.Box)
    prepared = prepare(make_es, env, ESConfig, ESHyperparams, settings, kinds, greedy_policy, parts, memory=True)
    check_greedy_policy(parts["model"], prepared.output, prepared.env.action_space)
    if isinstance(strategy := prepared.setup.config.strategy, Evosax):
        check_evosax(prepared.setup, strategy)
    if isinstance(noise := prepared.setup.config.noise, LowRankNoise):
        check_low_rank(parts["model"], prepared.setup.model, prepared.env, noise)
    return prepared.bind(make_algorithm(prepared.setup))
