"""``jaxrl.fitted_q_evaluation``: estimate the value of a policy from a dataset, without an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl.algorithms.common.off_policy_networks import resolve_critic
from jaxrl.algorithms.off_policy_evaluation import fitted_q
from jaxrl.algorithms.off_policy_evaluation.fitted_q import FittedQHyperparams, Problem
from jaxrl.builder.networks import ModelArguments, ModelFn, check_arguments, check_statistics
from jaxrl.builder.stand_in import stand_in
from jaxrl.models import action_value
from jaxrl.parallel import SEEDS, make_mesh
from jaxrl.replay.dataset import Dataset, DatasetInfo
from jaxrl.runtime.evaluation.policy_actions import actions_of, fixed_policy
from jaxrl.runtime.system.devices import seed_devices
from jaxrl.runtime.system.warn import warn
from jaxrl.settings.aliases import shortened, suggest_keywords
from jaxrl.settings.validation import check_count, check_seeds, check_switches, merge_hyperparams
from jaxrl.spaces.action_scaling import from_environment
from jaxrl.types import Array, Model
from jaxrl.xla.seed_axis import over_seeds

CHUNK = 500
"""Most gradient steps of a program, between which the host reads the values."""
STREAM = 0x66716500
"""Number folded into the key of each seed, far from those of training and evaluation."""
CRITIC = {"layer_norm": True}
"""Arguments of the critic's network unless they are given. Layer normalisation limits what it extrapolates."""
KEPT = 4
"""Sets of compiled programs kept for the next call, such as one for another policy."""


class FittedQEvaluation(NamedTuple):
    """Estimate of a policy's value: the discounted sum of rewards, for ever, from the first observations of the data."""

    value: float
    """Mean over seeds."""
    standard_error: float
    """Of ``value``, over seeds; NaN with a single one. It does not contain the error that all seeds share: that of the data."""
    values: np.ndarray
    """f64[num_seeds]: mean over the first observations of episodes. NaN for a seed that diverged, which ``value`` leaves out."""
    initial_values: np.ndarray
    """f32[num_seeds, episodes]: Q(s₀, π(s₀)) at the first observation of each episode."""
    td_loss: np.ndarray
    """f64[num_seeds]: mean of (Q(s, a) − y)² over the last chunk of updates."""
    history: np.ndarray
    """f64[chunks, num_seeds]: ``values`` after each chunk. They have stopped changing if ``updates`` was large enough."""
    updates: int
    """Gradient steps of each seed."""


class Programs(NamedTuple):
    """Compiled programs, which serve all policies."""

    everywhere: NamedSharding
    """Placement of what seeds share, a copy on each device."""
    problem: Callable[..., Problem]
    init: Callable[..., Any]
    learn: Callable[..., Any]
    values: Callable[..., Array]


@suggest_keywords
def fitted_q_evaluation(
    policy: Any,
    data: Dataset,
    *,
    gamma: float = 0.99,
    explore: bool | None = None,
    seeds: int | Sequence[int] = 4,
    updates: int = 20_000,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    tau: float = 0.05,
    n_step: int = 1,
    critic: Model | ModelFn | ModelArguments | None = None,
    normalize_observations: bool = True,
    anneal: bool = True,
    progress: Callable[[int, np.ndarray], object] | None = None,
) -> FittedQEvaluation:
    """Estimate the value of a fixed policy from a dataset, by fitted Q evaluation (Le et al. 2019, algorithm 3; Voloshin et al.
    2021): learn Q(s, a) ← r + γ·Q(s′, π(s′)) on the rows of the data, and return the mean of Q(s₀, π(s₀)).

    The value is that of the discounted rewards without a time limit: an episode that was truncated bootstraps from its last
    observation, and one that terminated does not. Values in targets are clipped to the sums that rewards of the data allow. All
    seeds learn in one program from one copy of the data.

    Args:
      policy: what ``jaxrl.load_policy`` returns; a pair ``(agent, state)`` of one seed, or ``(agent, policy)``; or a function
        that maps observations [B, ...] to actions [B, ...] in the environment's units, NumPy arrays. It must be memoryless.
      data: dataset with the policy's spaces, whose actions are Discrete or of a bounded Box. It need not be collected by the
        policy, but must contain actions like the policy's: elsewhere the critic extrapolates.
      gamma: discount per step, in [0, 1).
      explore: evaluate the policy as it acts in training, instead of greedily. Its actions are drawn anew for each chunk of
        updates. Default: as passed to ``load_policy``.
      seeds: number of critics (seeds 0 … n−1), or the seeds themselves. They differ in initial parameters and batches.
      updates: gradient steps of each critic, rounded up to chunks of equal length.
      batch_size: rows per gradient step.
      learning_rate: step size of Adam.
      tau: step of the target critic towards the critic at each update, as a fraction. The slowest errors of the target shrink by
        1 − tau·(1 − gamma) per update, so ``updates`` should be several times 1 / (tau·(1 − gamma)).
      n_step: number of rewards in a target. The actions after the first are those of the data, without correction, so 1 is right
        unless the policy collected the data.
      critic: arguments of ``jaxrl.models.action_value``, such as ``{"hidden_sizes": (64, 64)}``, with layer normalisation unless
        ``layer_norm`` is given; or a memoryless Model, or a function of (observation_space, action_space) that returns one, as
        for ``make_sac``. Default: an MLP of 2×256, ReLU, for vectors.
      normalize_observations: normalise observations by their mean and standard deviation in the data.
      anneal: let the learning rate fall linearly to 0 at the end, which averages the noise of batches.
      progress: called after each chunk with the number of updates and the values, f64[num_seeds].

    Returns:
      FittedQEvaluation.

    Raises:
      TypeError: the policy is recurrent or not a policy, ``data`` is not a Dataset, or its actions are neither Box nor Discrete.
      ValueError: the spaces differ, or a setting is out of range.
    """
    if not isinstance(data, Dataset):
        raise TypeError(f"data={shortened(data)} must be a Dataset, as jaxrl.load_dataset(file) returns")
    fitted_q.check_action_space(data.info.action_space)
    check_switches(normalize_observations=normalize_observations, anneal=anneal, explore=explore or False)
    if progress is not None and not callable(progress):
        raise TypeError(f"progress={shortened(progress)} must be a function of (updates, values f64[num_seeds]), or None")
    updates, numbers = check_count("updates", updates), {"batch_size": batch_size, "n_step": n_step}
    sizes = {name: check_count(name, number) for name, number in numbers.items()}
    hyperparams = _hyperparams(gamma=gamma, learning_rate=learning_rate, tau=tau)
    listed, fixed = check_seeds(seeds), fixed_policy(policy, data.info, explore)
    chunks = -(-updates // CHUNK)
    length = -(-updates // chunks)
    hyperparams = hyperparams._replace(total_steps=jnp.float32(chunks * length if anneal else 0))
    programs = _programs(data.info, _hashable(critic), len(listed), updates=length, **sizes)

    key = jax.random.fold_in(jax.random.key(listed[0]), STREAM)
    moments = data.info.running_moments() if normalize_observations else ()
    # The policy and the data may be on other devices, such as those of the seed that a run trained.
    placed, acting = jax.device_put((data, fixed.policy), programs.everywhere)
    fixed = fixed._replace(policy=acting)
    problem = programs.problem(placed, actions_of(fixed, placed, key), moments, hyperparams.gamma)
    learners, history = programs.init(np.asarray(listed, np.uint32), hyperparams), []
    for chunk in range(chunks):
        if fixed.explore and chunk:
            actions = actions_of(fixed, placed, jax.random.fold_in(key, chunk))
            problem = programs.problem(placed, actions, moments, hyperparams.gamma)
        learners, td_loss = programs.learn(learners, problem)
        found = np.asarray(programs.values(learners, problem))
        history.append(found.mean(1, dtype=np.float64))
        if progress is not None:
            progress((chunk + 1) * length, history[-1])
    return _result(found, np.asarray(td_loss, np.float64), np.array(history), chunks * length)


def _result(initial_values: np.ndarray, td_loss: np.ndarray, history: np.ndarray, updates: int) -> FittedQEvaluation:
    values = np.where(np.isfinite(history[-1]), history[-1], np.nan)
    known = values[np.isfinite(values)]
    if len(known) < len(values):
        warn(
            f"{len(values) - len(known)} of {len(values)} critics diverged and are left out: use a smaller learning_rate, or "
            "check the data for numbers that are too large"
        )
    value = float(known.mean()) if len(known) else float("nan")
    error = float(known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else float("nan")
    return FittedQEvaluation(value, error, values, initial_values, td_loss, history, updates)


def _hyperparams(**given: float) -> FittedQHyperparams:
    """Return the hyperparameters as f32 scalars; raise an error if one is out of range."""
    found = merge_hyperparams(FittedQHyperparams(), given)
    if not given["gamma"] < 1:
        raise ValueError(f"gamma={given['gamma']:g} is not allowed: it must be a number in [0, 1), since rewards have no end")
    return found


def _hashable(critic: Any) -> Any:
    """Return the ``critic`` as a key of a cache: arguments of a network as pairs."""
    if critic is not None and not isinstance(critic, Mapping):
        return critic
    plain = lambda x: tuple(x) if isinstance(x, list) else x  # noqa: E731
    return tuple((name, plain(value)) for name, value in {**CRITIC, **(critic or {})}.items())


@lru_cache(KEPT)
def _programs(info: DatasetInfo, critic: Any, num_seeds: int, *, updates: int, batch_size: int, n_step: int) -> Programs:
    """Return programs for a dataset with this description, where seeds are sharded over devices."""
    arguments = dict(critic) if type(critic) is tuple else {}
    check_arguments(action_value, arguments, "critic")
    env, default = stand_in("the dataset", info.observation_space, info.action_space), partial(action_value, **arguments)
    model = resolve_critic(None if type(critic) is tuple else critic, default, env)
    check_statistics("Fitted Q evaluation", model, "critic")
    setup = fitted_q.make_setup(info, model, updates=updates, batch_size=batch_size, n_step=n_step)
    devices = seed_devices(num_seeds).devices
    mesh = make_mesh({SEEDS: len(devices)}, devices)
    mapped, everywhere = over_seeds(num_seeds // len(devices)), NamedSharding(mesh, P())

    def over_devices(function: Callable[..., Any], *axes: int | None, **options: Any) -> Callable[..., Any]:
        specs = tuple(P() if axis is None else P(SEEDS) for axis in axes)
        sharded = jax.shard_map(mapped(function, in_axes=axes), mesh=mesh, in_specs=specs, out_specs=P(SEEDS), check_vma=False)
        return jax.jit(sharded, **options)

    @partial(jax.jit, out_shardings=everywhere)
    def of_policy(data: Dataset, actions: Array, gamma: Array) -> Any:
        return from_environment(info.action_space, actions)[:, None], fitted_q.units_of(data, gamma)

    def problem(data: Dataset, actions: Array, moments: Any, gamma: Array) -> Problem:
        in_units, units = of_policy(data, actions, gamma)
        return Problem(data, in_units, jax.device_put(moments, everywhere), units)

    def init(seed: Array, hyperparams: FittedQHyperparams) -> Any:
        return fitted_q.init(setup, jax.random.fold_in(jax.random.key(seed), STREAM), hyperparams)

    return Programs(
        everywhere=everywhere,
        problem=problem,
        init=over_devices(init, 0, None),
        learn=over_devices(lambda learner, shared: fitted_q.learn(setup, shared, learner), 0, None, donate_argnums=0),
        values=over_devices(lambda learner, shared: fitted_q.initial_values(setup, shared, learner), 0, None),
    )
