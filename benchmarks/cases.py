"""Cases of the speed benchmark: plain data from which all sides build their programs. Standard library only."""

from __future__ import annotations

from typing import Any, NamedTuple

ENV = "CartPole-v1"
HIDDEN_SIZES = (64, 64)
UPDATES_SHARE = 3
"""The updates alone are measured over 1/3 of a case's iterations."""


GROUPS = {
    "ppo": "PPO on CartPole",
    "dqn": "DQN on CartPole",
    "ppo-recurrent": "recurrent PPO on CartPole without velocities",
    "ppo-minatar": "PPO on MinAtar's Breakout",
    "sac": "SAC on Pendulum",
    "crossq": "CrossQ on Pendulum",
}
"""Name -> title. The cases of a group take turns, and their results are one file."""


class Case(NamedTuple):
    """One training run, in terms that all sides share."""

    name: str
    title: str
    group: str
    """One of ``GROUPS``."""
    algorithm: str
    settings: dict[str, Any]
    """Settings, with jaxrl's names."""
    total_steps: int
    """Environment steps per seed and run, from scratch."""
    env: str = ENV
    """Environment id, the same for jaxrl and the peer."""
    hidden_sizes: tuple[int, ...] = HIDDEN_SIZES
    """Hidden sizes of all networks on all sides."""
    network: dict[str, Any] = {}  # noqa: RUF012  # read only
    """Settings of jaxrl's network that differ from the peer's."""
    no_peer: str = ""
    """Reason why Rejax has no such case. Empty if it has."""
    beside: tuple[str, ...] = ()
    """Sides in addition to Rejax and the bound: ``plain``, ``sbx``, or ``vmapped``, jaxrl with all seeds on one device."""
    num_seeds: int = 1
    runs_per_section: int = 1
    """Runs per timed section, one after the other, so that it lasts seconds."""
    peer_total_steps: int | None = None
    """Length of a shorter run for the peer, if the same run would take minutes."""
    bound_total_steps: int | None = None
    """Length of a longer run for the bound, if the same run would take only milliseconds."""
    times_warmup: bool = True
    """False if no peer is timed while it collects its first rows: jaxrl is then not either."""
    repeats_compilation: bool = True
    """False if another case compiles the same program except for a size, or if its compilation has no requirement."""

    @property
    def updates_total_steps(self) -> int:
        """Environment steps of the run of updates alone. All updates cost the same, so a part of them is enough."""
        start = self.settings.get("learning_starts", 0)
        return start + max(self.total_steps // UPDATES_SHARE, self.steps_per_iteration)

    @property
    def steps_per_iteration(self) -> int:
        """Rows of all environments of one seed."""
        return self.settings["num_envs"] * self.settings.get("rollout_length", 1)

    @property
    def updates_per_iteration(self) -> int:
        """Gradient steps per iteration; with replay, one per step of all environments."""
        if "num_epochs" in self.settings:
            return self.settings["num_epochs"] * self.settings["num_minibatches"]
        return self.settings.get("rollout_length", 1)


# Rejax's values for CartPole (configs/gymnax/cartpole.yaml), with the sizes of this benchmark.
PPO = {
    "rollout_length": 128,
    "num_epochs": 4,
    "num_minibatches": 4,
    "learning_rate": 7.5e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_eps": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}

# Likewise, with one update per step of all environments. Both sides update the target network at every update.
DQN = {
    "num_envs": 1,
    "batch_size": 128,
    "learning_starts": 128,
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "tau": 0.02,
    "epsilon_start": 1.0,
    "epsilon_end": 0.05,
    "exploration_steps": 10_000,
    "max_grad_norm": 10.0,
}

# Rejax's sizes for Pendulum (configs/gymnax/pendulum.yaml). Learning rate and clipping suit observations that are not normalised.
# The policy, the critics and the temperature share one learning rate.
SAC = {
    "num_envs": 1,
    "buffer_size": 10_000,
    "batch_size": 256,
    "learning_starts": 256,
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "tau": 0.02,
    "max_grad_norm": 1_000.0,
}

# SBX's sizes, which are jaxrl's defaults. The policy learns with every third update, so an iteration of jaxrl has a multiple of
# three, by default twelve.
CROSSQ = {name: SAC[name] for name in SAC if name != "tau"} | {"critic": {"hidden_sizes": (1024, 1024)}, "rollout_length": 12}


def _ppo(name: str, title: str, num_envs: int, total_steps: int, *, group: str = "ppo", **fields: Any) -> Case:
    return Case(name, title, group, "ppo", PPO | {"num_envs": num_envs}, total_steps, **fields)


def _dqn(name: str, title: str, buffer_size: int, num_envs: int = 1, total_steps: int = 20_000, **fields: Any) -> Case:
    settings = DQN | {"buffer_size": buffer_size, "num_envs": num_envs}
    return Case(name, title, "dqn", "dqn", settings, total_steps, bound_total_steps=1_000_000, **fields)


def _sac(name: str, title: str, hidden_sizes: tuple[int, ...], **fields: Any) -> Case:
    defaults: dict[str, Any] = {"hidden_sizes": hidden_sizes, "bound_total_steps": 1_000_000, "repeats_compilation": False}
    return Case(name, title, "sac", "sac", SAC, 10_000, env="Pendulum-v1", **defaults | fields)


_ALONE: dict[str, Any] = {"bound_total_steps": 5_000_000, "repeats_compilation": False}
_BREAKOUT: dict[str, Any] = _ALONE | {"group": "ppo-minatar", "env": "Breakout-MinAtar"}

CASES = (
    _ppo("ppo-1-seed", "PPO, 4 envs, 1 seed", 4, 500_000, runs_per_section=2, beside=("plain",)),
    _ppo("ppo-8-seeds", "PPO, 4 envs, 8 seeds", 4, 500_000, num_seeds=8, beside=("plain",)),
    _ppo("ppo-512-envs", "PPO, 512 envs, 1 seed", 512, 30 * 512 * 128, repeats_compilation=False, beside=("plain",)),
    _dqn("dqn-10k", "DQN, buffer 10k", 10_000),
    _dqn("dqn-100k", "DQN, buffer 100k", 100_000, repeats_compilation=False),
    _dqn("dqn-1m", "DQN, buffer 1M", 1_000_000, peer_total_steps=2_000, repeats_compilation=False),
    _dqn("dqn-8-seeds", "DQN, 10 envs, 8 seeds", 10_000, 10, 50_000, num_seeds=8, repeats_compilation=False),
    _ppo(
        "ppo-gru",
        "PPO with a GRU, CartPole without velocities, 16 envs",
        16,
        500_000,
        group="ppo-recurrent",
        env="CartPole-v1|select_observation(0, 2)",
        network={"core": "gru", "core_size": 64},
        no_peer="has no recurrent networks",
        **_ALONE,
    ),
    _ppo("breakout-mlp", "PPO, Breakout, MLP, 64 envs", 64, 30 * 64 * 128, network={"encoder": "flat"}, **_BREAKOUT),
    _ppo(
        "breakout-conv",
        "PPO, Breakout, MinAtar's network, 64 envs",
        64,
        30 * 64 * 128,
        network={"hidden_sizes": None, "activation": None},
        no_peer="has no convolutions",
        **_BREAKOUT,
    ),
    _sac("sac-256", "SAC on Pendulum, 2×256", (256, 256), beside=("sbx",)),
    _sac("sac-64", "SAC on Pendulum, 2×64", (64, 64), beside=("sbx",)),
    _sac("sac-8-seeds", "SAC on Pendulum, 2×64, 8 seeds", (64, 64), num_seeds=8, beside=("vmapped",)),
    Case(
        "crossq",
        "CrossQ on Pendulum, critics of 2×1,024",
        "crossq",
        "crossq",
        CROSSQ,
        500,
        env="Pendulum-v1",
        hidden_sizes=(256, 256),
        no_peer="has no CrossQ",
        beside=("sbx",),
        bound_total_steps=1_000_000,
        times_warmup=False,
        repeats_compilation=False,
    ),
)

_MANY: dict[str, Any] = {"group": "accelerator", "no_peer": "is not compared there"}

ACCELERATOR = (
    _ppo("ppo-1024-envs", "PPO, 1,024 envs", 1_024, 60 * 1_024 * 128, **_MANY),
    _ppo("ppo-4096-envs", "PPO, 4,096 envs", 4_096, 30 * 4_096 * 128, **_MANY),
    _ppo("ppo-256-seeds", "PPO, 4 envs, 256 seeds", 4, 60 * 4 * 128, num_seeds=256, **_MANY),
    _ppo(
        "breakout-4096-envs",
        "PPO, Breakout, MinAtar's network, 4,096 envs",
        4_096,
        20 * 4_096 * 128,
        env="Breakout-MinAtar",
        network={"hidden_sizes": None, "activation": None},
        **_MANY,
    ),
    _ppo(
        "breakout-bf16",
        "the same in bfloat16",
        4_096,
        20 * 4_096 * 128,
        env="Breakout-MinAtar",
        network={"hidden_sizes": None, "activation": None, "dtype": "bfloat16"},
        **_MANY,
    ),
    Case(
        "dqn-256-seeds",
        "DQN, 10 envs, 256 seeds",
        "accelerator",
        "dqn",
        DQN | {"num_envs": 10, "buffer_size": 10_000},
        10_000,
        num_seeds=256,
    ),
    Case(
        "sac-256-seeds",
        "SAC on Pendulum, 2×64, 256 seeds",
        "accelerator",
        "sac",
        SAC,
        2_000,
        env="Pendulum-v1",
        hidden_sizes=(64, 64),
        num_seeds=256,
    ),
)
"""Sizes for an accelerator, which only ``benchmarks.accelerator`` measures."""


def scaled(case: Case, scale: float) -> Case:
    """Return the case with shorter runs, for a quick check that everything works."""
    if scale == 1:
        return case
    shortest = 2 * max(case.steps_per_iteration, case.settings.get("learning_starts", 1))
    names = ("total_steps", "peer_total_steps", "bound_total_steps")
    lengths = {name: steps for name in names if (steps := getattr(case, name)) is not None}
    return case._replace(**{name: max(shortest, int(scale * steps)) for name, steps in lengths.items()})
