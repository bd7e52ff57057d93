"""Registry of algorithms. It is data: the module of an algorithm is imported when it is first needed.

The package, the command line, sweeps, the documentation, the benchmarks and the tests read ``ALGORITHMS``, so a new algorithm
needs one entry here: see ``docs/howto/algorithm.md``.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from jaxrl.settings.aliases import listed, unknown

OTHER_NETWORKS = {"critic": "action_value", "dynamics": "latent_dynamics", "prediction": "latent_prediction"}
"""Keyword of builders for a network other than ``model`` -> the function of ``jaxrl.models`` that makes it by default."""


class Paper(NamedTuple):
    authors: str
    year: int
    source: str
    """arXiv number or DOI."""

    def __str__(self) -> str:
        return f"{self.authors} {self.year}"


class Entry(NamedTuple):
    """Description of an algorithm. Its module defines the ``builder``, ``config`` and ``hyperparams`` that are named here."""

    name: str
    """Name on the command line, ``jaxrl train NAME``; the builder is ``make_NAME``."""
    title: str
    """Name in text. Its letters and digits are the prefix of the class names, as in PPOConfig and PPOHyperparams."""
    line: str
    """Description in one line."""
    actions: tuple[str, ...]
    """Kinds of action spaces that the algorithm supports."""
    family: str
    """``on-policy``, ``replay``, ``dataset``, ``evolution``, or ``planning`` with the environment itself or a model of it."""
    memory: bool
    """Recurrent models are supported."""
    paper: Paper | None
    module: str
    network: str | None = None
    """Function of ``jaxrl.models`` that makes the default network. On the command line its arguments are ``--model``."""
    memoryless: bool = True
    """Models without memory are supported."""

    @property
    def builder(self) -> str:
        return f"make_{self.name}"

    @property
    def config(self) -> str:
        return f"{self._stem}Config"

    @property
    def hyperparams(self) -> str:
        return f"{self._stem}Hyperparams"

    @property
    def _stem(self) -> str:
        return "".join(filter(str.isalnum, self.title))

    @property
    def takes(self) -> str:
        return listed(self.actions)

    @property
    def models(self) -> str:
        """Kinds of models that the algorithm supports, as text."""
        kinds = {"memoryless": self.memoryless, "recurrent": self.memory}
        return listed([kind for kind, takes in kinds.items() if takes])

    @property
    def help(self) -> str:
        return f"{self.line}; {self.takes} actions"

    def load(self) -> Loaded:
        """Import the algorithm's module.

        Raises:
          ValueError: the module lacks an object that is named by this entry.
        """
        module, names = importlib.import_module(self.module), (self.builder, self.config, self.hyperparams)
        if lacking := [name for name in names if not hasattr(module, name)]:
            raise ValueError(
                f"{self.module} lacks {', '.join(lacking)}, as named by name={self.name!r} and title={self.title!r} of its "
                "Entry: define it, or correct the Entry"
            )
        return Loaded(*(getattr(module, name) for name in names))


class Loaded(NamedTuple):
    """Objects of an algorithm's module: the builder and the classes of its settings."""

    make: Any
    config: Any
    hyperparams: Any


ALGORITHMS = {
    entry.name: entry
    for entry in (
        Entry(
            "ppo",
            "PPO",
            "proximal policy optimisation",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="on-policy",
            memory=True,
            paper=Paper("Schulman et al.", 2017, "arXiv:1707.06347"),
            module="jaxrl.algorithms.ppo",
            network="actor_critic",
        ),
        Entry(
            "a2c",
            "A2C",
            "advantage actor-critic, synchronous",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="on-policy",
            memory=True,
            paper=Paper("Mnih et al.", 2016, "arXiv:1602.01783"),
            module="jaxrl.algorithms.a2c",
            network="actor_critic",
        ),
        Entry(
            "impala",
            "IMPALA",
            "actor-critic by V-trace, from rollouts of older policies too",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="on-policy",
            memory=True,
            paper=Paper("Espeholt et al.", 2018, "arXiv:1802.01561"),
            module="jaxrl.algorithms.impala",
            network="actor_critic",
        ),
        Entry(
            "reinforce",
            "REINFORCE",
            "policy gradient by the returns of whole episodes",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="on-policy",
            memory=True,
            paper=Paper("Williams", 1992, "doi:10.1007/BF00992696"),
            module="jaxrl.algorithms.reinforce",
            network="actor_critic",
        ),
        Entry(
            "vmpo",
            "V-MPO",
            "maximum a posteriori policy optimisation by the better half of the advantages, on-policy",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="on-policy",
            memory=True,
            paper=Paper("Song et al.", 2020, "arXiv:1909.12238"),
            module="jaxrl.algorithms.vmpo",
            network="actor_critic",
        ),
        Entry(
            "dqn",
            "DQN",
            "deep Q-learning with uniform replay",
            actions=("Discrete",),
            family="replay",
            memory=False,
            paper=Paper("Mnih et al.", 2015, "doi:10.1038/nature14236"),
            module="jaxrl.algorithms.dqn",
            network="q_network",
        ),
        Entry(
            "pqn",
            "PQN",
            "parallelised Q-learning by λ-returns, without replay",
            actions=("Discrete", "Box"),
            family="on-policy",
            memory=True,
            paper=Paper("Gallici et al.", 2024, "arXiv:2407.04811"),
            module="jaxrl.algorithms.pqn",
            network="q_network",
        ),
        Entry(
            "r2d2",
            "R2D2",
            "recurrent Q-learning from prioritised sequences",
            actions=("Discrete",),
            family="replay",
            memory=True,
            paper=Paper("Kapturowski et al.", 2019, "openreview:r1lyTjAqYX"),
            module="jaxrl.algorithms.r2d2",
            network="q_network",
            memoryless=False,
        ),
        Entry(
            "sac",
            "SAC",
            "soft actor-critic, with an ensemble of critics",
            actions=("Box", "Discrete"),
            family="replay",
            memory=True,
            paper=Paper("Haarnoja et al.", 2018, "arXiv:1812.05905"),
            module="jaxrl.algorithms.sac",
            network="policy_network",
        ),
        Entry(
            "crossq",
            "CrossQ",
            "soft actor-critic with batch renormalisation, without target networks",
            actions=("Box",),
            family="replay",
            memory=False,
            paper=Paper("Bhatt et al.", 2024, "arXiv:1902.05605"),
            module="jaxrl.algorithms.crossq",
            network="policy_network",
        ),
        Entry(
            "mpo",
            "MPO",
            "maximum a posteriori policy optimisation, off-policy",
            actions=("Box", "Discrete"),
            family="replay",
            memory=False,
            paper=Paper("Abdolmaleki et al.", 2018, "arXiv:1806.06920"),
            module="jaxrl.algorithms.mpo",
            network="policy_network",
        ),
        Entry(
            "td3",
            "TD3",
            "twin delayed deep deterministic policy gradient",
            actions=("Box",),
            family="replay",
            memory=True,
            paper=Paper("Fujimoto et al.", 2018, "arXiv:1802.09477"),
            module="jaxrl.algorithms.td3",
            network="deterministic_policy",
        ),
        Entry(
            "ddpg",
            "DDPG",
            "deep deterministic policy gradient",
            actions=("Box", "Discrete"),
            family="replay",
            memory=True,
            paper=Paper("Lillicrap et al.", 2016, "arXiv:1509.02971"),
            module="jaxrl.algorithms.ddpg",
            network="deterministic_policy",
        ),
        Entry(
            "iql",
            "IQL",
            "implicit Q-learning, from a dataset or from replay",
            actions=("Discrete", "Box"),
            family="replay",
            memory=False,
            paper=Paper("Kostrikov et al.", 2022, "arXiv:2110.06169"),
            module="jaxrl.algorithms.iql",
            network="actor_critic",
        ),
        Entry(
            "awr",
            "AWR",
            "advantage-weighted regression to λ-returns and actions of a replay",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="replay",
            memory=False,
            paper=Paper("Peng et al.", 2019, "arXiv:1910.00177"),
            module="jaxrl.algorithms.awr",
            network="actor_critic",
        ),
        Entry(
            "bc",
            "BC",
            "behaviour cloning of a dataset, or of its best episodes",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="dataset",
            memory=False,
            paper=Paper("Pomerleau", 1991, "doi:10.1162/neco.1991.3.1.88"),
            module="jaxrl.algorithms.bc",
            network="greedy_policy",
        ),
        Entry(
            "dagger",
            "DAgger",
            "imitation of a trained policy in the states that the student reaches; distillation",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="replay",
            memory=True,
            paper=Paper("Ross et al.", 2011, "arXiv:1011.0686"),
            module="jaxrl.algorithms.dagger",
            network="greedy_policy",
        ),
        Entry(
            "qdagger",
            "QDagger",
            "deep Q-learning that a trained policy teaches, until it is surpassed",
            actions=("Discrete",),
            family="replay",
            memory=False,
            paper=Paper("Agarwal et al.", 2022, "arXiv:2206.01626"),
            module="jaxrl.algorithms.qdagger",
            network="q_network",
        ),
        Entry(
            "dt",
            "DT",
            "decision transformer: cloning given the return to come, from a dataset",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="dataset",
            memory=True,
            paper=Paper("Chen et al.", 2021, "arXiv:2106.01345"),
            module="jaxrl.algorithms.dt",
            network="greedy_policy",
        ),
        Entry(
            "es",
            "ES",
            "evolution strategies, and augmented random search",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="evolution",
            memory=True,
            paper=Paper("Salimans et al.", 2017, "arXiv:1703.03864"),
            module="jaxrl.algorithms.es",
            network="greedy_policy",
        ),
        Entry(
            "alphazero",
            "AlphaZero",
            "tree search with the environment, and a network that learns from it; self-play",
            actions=("Discrete",),
            family="planning",
            memory=False,
            paper=Paper("Silver et al.", 2018, "doi:10.1126/science.aar6404"),
            module="jaxrl.algorithms.alphazero",
            network="actor_critic",
        ),
        Entry(
            "muzero",
            "MuZero",
            "tree search with a model that it learns; games of two players by self-play",
            actions=("Discrete",),
            family="planning",
            memory=False,
            paper=Paper("Schrittwieser et al.", 2020, "arXiv:1911.08265"),
            module="jaxrl.algorithms.muzero",
            network="representation",
        ),
        Entry(
            "mpc",
            "MPC",
            "model predictive control by sampling, in learned dynamics or in the environment itself",
            actions=("Box",),
            family="planning",
            memory=False,
            paper=Paper("Chua et al.", 2018, "arXiv:1805.12114"),
            module="jaxrl.algorithms.mpc",
            network="dynamics_network",
        ),
    )
}


_ELSEWHERE: dict[str, tuple[str, str]] = {
    "rainbow": (
        "dqn",
        "--head c51 --model dueling=True --noise noisy --epsilon-start 0 --epsilon-end 0 --n-step 3 --replay prioritized "
        "--replay.exponent 0.5 --learning-rate 1e-3 --adam-eps 1.5e-4",
    ),
    "c51": ("dqn", "--head c51"),
    "qrdqn": ("dqn", "--head qr"),
    "iqn": ("dqn", "--head iqn"),
    "hlgauss": ("dqn", "--head hl_gauss"),
    "d4pg": ("ddpg", "--critics atoms --n-step 5 --replay prioritized"),
    "dpo": ("ppo", "--surrogate drift"),
    "rpo": ("ppo", "--mean-noise 0.5"),
    "ppolag": ("ppo", "--constraint lagrangian --constraint.kp 0 --constraint.kd 0"),
    "cppopid": ("ppo", "--constraint lagrangian"),
    "ddqn": ("dqn", "--bootstrap double"),
    "duelingdqn": ("dqn", "--model dueling=True"),
    "noisydqn": ("dqn", "--noise noisy"),
    "per": ("dqn", "--replay prioritized"),
    "apex": ("dqn", "--replay prioritized --exploration spread --scheme apex"),
    "apexdqn": ("dqn", "--replay prioritized --exploration spread --scheme apex"),
    "openaies": ("es", ""),
    "td3bc": ("td3", "--cloning td3_bc"),
    "rebrac": ("td3", "--cloning rebrac --critic layer_norm=True"),
    "cql": (
        "sac",
        "--conservative cql --model hidden_sizes=256,256,256 --learning-rate 3e-4 --actor-learning-rate 1e-4 "
        "--temperature.learning-rate 1e-4",
    ),
    "calql": ("sac", "--conservative cql --conservative.calibrated True"),
    "cqlrho": ("sac", "--conservative cql --conservative.weighted False"),
    "discretecql": ("dqn", "--conservative cql"),
    "awac": ("iql", "--value sampled --weight.beta 1"),
    "crr": ("iql", "--value sampled --weight binary"),
    "decisiontransformer": ("dt", ""),
    "rvs": ("dt", "--model core=None"),
    "10bc": ("bc", "--best 0.1"),
    "behaviorcloning": ("bc", ""),
    "behaviourcloning": ("bc", ""),
    "ars": ("es", "--strategy ars"),
    "drqn": ("r2d2", ""),
    "ppo2": ("ppo", ""),
    "ippo": ("ppo", ""),
    "ia2c": ("a2c", ""),
    "idqn": ("dqn", ""),
    "pqnvdn": ("pqn", "--decomposition vdn"),
    "qmix": (
        "r2d2",
        "--decomposition qmix --replay.exponent 0 --replay.importance-exponent 0 --rescale none --n-step 1 "
        "--target-update-interval 200 --learning-rate 5e-4 --max-grad-norm 10 --exploration-steps 50000",
    ),
    "vdn": ("r2d2", "--decomposition vdn --replay.exponent 0 --replay.importance-exponent 0 --rescale none --n-step 1"),
    "coma": ("a2c", "--counterfactual --gae-lambda 0.8 --max-grad-norm 10"),
    "maddpg": (
        "ddpg",
        "--joint-actions --model hidden_sizes=64,64 --critic hidden_sizes=64,64 privileged=True --num-envs 4 --rollout-length 25 "
        "--batch-size 1024 --buffer-size 1000000 --replay-ratio 10.24 --learning-rate 1e-2 --actor-learning-rate 1e-2 "
        "--gamma 0.95 --tau 0.01 --max-grad-norm 0.5",
    ),
    "matd3": ("td3", "--joint-actions --critic privileged=True"),
    "mappo": (
        "ppo",
        "--model critic=privileged --normalize-values --surrogate clip --surrogate.value-loss True --num-epochs 10 "
        "--num-minibatches 1 --learning-rate 7e-4 --max-grad-norm 10",
    ),
    "ppocontinuous": ("ppo", ""),
    "recurrentppo": ("ppo", "--model core=lstm"),
    "ppolstm": ("ppo", "--model core=lstm"),
    "ddppo": ("ppo", "--scheme ddppo"),
    "a3c": ("a2c", "--scheme a3c"),
    "ga3c": ("impala", "--scheme ga3c"),
    "vpg": ("reinforce", ""),
    "policygradient": ("reinforce", ""),
    "her": ("sac", "--hindsight future"),
    "tqc": ("sac", "--critics quantiles --critics.size 5 --actor-value mean"),
    "redq": ("sac", "--critics.size 10 --critics.subset 2 --actor-value mean --replay-ratio 5120 --policy-delay 20"),
    "droq": ("sac", "--critic dropout=0.01 layer_norm=True --actor-value mean --replay-ratio 5120 --policy-delay 20"),
}
"""Algorithms of other libraries that are settings here: name without punctuation -> algorithm and its command-line flags."""


def known_as(name: str) -> tuple[str, str] | None:
    """Return ``(algorithm, flags)`` for the name of an algorithm in another library, or None if it is unknown."""
    return _ELSEWHERE.get("".join(filter(str.isalnum, name.lower())))


def unknown_algorithm(name: str) -> ValueError | TypeError:
    """Return the error for a name that is not in ``ALGORITHMS``."""
    if (plain := name.lower()) in ALGORITHMS:
        return ValueError(f"unknown algorithm {name!r}: write {plain}")
    if found := known_as(name):
        algorithm, flags = found
        return ValueError(f"{name} is {ALGORITHMS[algorithm].title} here: jaxrl train {algorithm} --env ENV {flags}".rstrip())
    return unknown("algorithm", name, list(ALGORITHMS))


def setting_names(algorithm: str) -> tuple[list[str], list[str]]:
    """Return the names of an algorithm's structural settings and of its hyperparameters, except options, their fields, and
    ``total_steps``."""
    from jaxrl.settings.options import held_by_options, option_fields  # which import numpy

    _, config, hyperparams = ALGORITHMS[algorithm].load()
    options, held = option_fields(config), {*held_by_options(config), "total_steps"}
    structure = [name for name in config.__dataclass_fields__ if name not in options]
    return structure, [name for name in hyperparams._fields if name not in held]


def title_of(builder: str) -> str:
    """Return the title for a builder's name, "PPO" for ``make_ppo``; for a custom builder, its name."""
    titles = {entry.builder: entry.title for entry in ALGORITHMS.values()}
    return titles.get(builder, builder.removeprefix("make_"))
