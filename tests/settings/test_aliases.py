"""Names from other libraries: every error gives jaxrl's name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxrl
from jaxrl.optimize.schedules import check_schedules
from jaxrl.registry import ALGORITHMS, setting_names
from jaxrl.registry.elsewhere import ELSEWHERE
from jaxrl.runtime.cli.commands.train import parse
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.cli.run_flags import run_flags
from jaxrl.runtime.search.sweep import SweepFile, read_sweep
from jaxrl.settings.aliases import alias_table, nearest, run_arguments, translate_alias
from jaxrl.settings.options import dotted_names, option_fields
from jaxrl.types import Agent
from tests.helpers import probes
from tests.helpers.agents import ALGORITHM_NAMES, every_algorithm, required, small, small_dqn, small_ppo
from tests.helpers.datasets import random_dataset

ENV = probes.constant_reward()
Builder = Callable[..., Agent]


def keywords(function: Any) -> set[str]:
    return {name for name, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD}


def test_nearest() -> None:
    assert nearest("gama", ["lambda", "gamma"]) == " Did you mean 'gamma'?"
    assert nearest("q", ["gamma"]) == nearest("gamma", []) == ""


@pytest.mark.parametrize(
    "build, name, here",
    [
        (small_ppo, "num_steps", "rollout_length"),  # CleanRL, Rejax
        (small_ppo, "n_steps", "rollout_length"),  # SB3
        (small_ppo, "lr", "learning_rate"),
        (small_ppo, "LR", "learning_rate"),  # PureJaxRL
        (small_ppo, "NUM_ENVS", "num_envs"),
        (small_ppo, "n_envs", "num_envs"),
        (small_ppo, "update_epochs", "num_epochs"),
        (small_ppo, "n_epochs", "num_epochs"),
        (small_ppo, "loss_type", "surrogate"),  # RLlib
        (small_ppo, "ent_coeff", "ent_coef"),
        (small_ppo, "anneal_lr", "anneal"),
        (small_ppo, "batch_size", "num_minibatches"),
        (small_ppo, "total_timesteps", "total_steps"),
        (small_ppo, "policy_kwargs", "model"),
        (small_dqn, "n_envs", "num_envs"),
        (small_dqn, "train_frequency", "replay_ratio"),
        (small_dqn, "target_network_frequency", "target_update_interval"),
        (small_dqn, "start_e", "epsilon_start"),
        (small_dqn, "exploration_final_eps", "epsilon_end"),
        (small_dqn, "exploration_fraction", "exploration_steps"),
        (small_dqn, "fill_buffer", "learning_starts"),
        (small_dqn, "ddqn", "bootstrap"),
        (small_dqn, "prioritized_replay", "replay"),
        (small_dqn, "noisy", "noise"),
        (small_dqn, "her", "hindsight"),
        (small_dqn, "dueling", "model"),
        (small_dqn, "polyak", "tau"),
    ],
)
def test_a_builder_says_what_a_keyword_is_called_here(build: Builder, name: str, here: str) -> None:
    with pytest.raises(TypeError, match=rf"unknown keyword '{name}'\. It is called '{here}' here[. ]") as caught:
        build(ENV, **{name: 3})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "build, name, words",
    [
        (
            jaxrl.make_sac,
            "ent_coef",
            "'temperature' here (learnt by default, as with ent_coef='auto'; FixedTemperature(value)",
        ),
        (jaxrl.make_sac, "initial_alpha", "'temperature' here"),  # RLlib
        (jaxrl.make_sac, "q_lr", "'learning_rate' here"),
        (jaxrl.make_sac, "train_batch_size", "'batch_size' here"),
        (jaxrl.make_sac, "target_network_frequency", "There is no such setting: the targets move by tau at every update"),
        (jaxrl.make_sac, "action_noise", "There is no such setting: the policy explores by its own standard deviation"),
        (jaxrl.make_sac, "device", "There is no such setting: JAX uses the accelerator that it finds"),
        (jaxrl.make_td3, "action_noise", "'exploration_noise' here (its standard deviation, on actions in [−1, 1]"),
        (jaxrl.make_td3, "expl_noise", "'exploration_noise' here"),
        (jaxrl.make_td3, "policy_frequency", "'policy_delay' here"),
        (jaxrl.make_td3, "target_policy_noise", "'target_noise' here"),
        (jaxrl.make_ddpg, "action_noise", "'exploration_noise' here"),
        (jaxrl.make_impala, "vtrace_clip_rho_threshold", "'rho_bar' here"),
        (jaxrl.make_impala, "baseline_cost", "'vf_coef' here"),  # TorchBeast
        (jaxrl.make_impala, "sample_batch_steps", "'rollout_length' here"),  # PARL
        (jaxrl.make_impala, "lr_scheduler", "'schedules' here"),
        (jaxrl.make_impala, "batch_size", "There is no such setting: an iteration learns from num_envs * rollout_length rows"),
        (jaxrl.make_dqn, "target_network_frequency", "'target_update_interval' here"),
    ],
)
def test_a_hint_stands_alone(build: Builder, name: str, words: str) -> None:
    """Without a list of all settings: SAC's has 600 characters."""
    with pytest.raises(TypeError) as caught:
        build("Pendulum-v1" if build is not jaxrl.make_dqn else "CartPole-v1", **{name: "auto"})
    said = str(caught.value)
    assert words in said and len(said) < 200 and said.endswith(".")


@pytest.mark.parametrize(
    "build, name, field",
    [
        (small_ppo, "clip_coef", "surrogate=Clip(eps=…)"),  # CleanRL
        (small_ppo, "clip_range", "surrogate=Clip(eps=…)"),  # Stable-Baselines3
        (small_ppo, "clip_range_vf", "surrogate=Clip(value_loss=…)"),
        (small_ppo, "kl_coeff", "surrogate=KLPenalty(coef=…)"),  # RLlib
        (small_dqn, "v_max", "head=C51(v_max=…)"),
        (small_dqn, "n_quantiles", "head=QR(num_quantiles=…) or head=IQN(num_quantiles=…)"),
        (small_dqn, "prioritized_replay_alpha", "replay=Prioritized(exponent=…)"),
        (small_dqn, "sigma0", "noise=Noisy(sigma=…)"),
        (small_dqn, "munchausen_alpha", "bootstrap=Munchausen(weight=…)"),
        (
            small_dqn,
            "her_ratio",
            "hindsight=Future(share=…), hindsight=Final(share=…) or hindsight=Episode(share=…) (a",
        ),
        (partial(small, "r2d2"), "prioritized_replay_alpha", "replay=Sequence(exponent=…)"),
        (partial(small, "r2d2"), "value_rescale_eps", "rescale=Rescale(eps=…)"),
        (partial(small, "pqn"), "apex_alpha", "exploration=Spread(exponent=…)"),
        (partial(small, "sac"), "target_entropy", "temperature=LearnedTemperature(box_entropy=…) (nats below 0 per dimension"),
        (partial(small, "sac"), "n_critics", "critics=Ensemble(size=…) or critics=Quantiles(size=…)"),
        (partial(small, "sac"), "num_min_qs", "critics=Ensemble(subset=…)"),
        (partial(small, "sac"), "top_quantiles_to_drop_per_net", "critics=Quantiles(dropped=…)"),
        (partial(small, "sac"), "beta_ub", "exploration=Optimistic(beta=…)"),
        (partial(small, "td3"), "theta", "noise=OU(theta=…)"),
        (partial(small, "ddpg"), "sde_sample_freq", "noise=Gaussian(hold=…)"),
    ],
)
def test_a_field_of_an_option_is_shown_in_it(build: Builder, name: str, field: str) -> None:
    with pytest.raises(TypeError, match=rf"unknown keyword '{name}'\. It is a field of an option: {re.escape(field)}") as caught:
        build(ENV, **{name: 3})
    assert "\n" not in str(caught.value)


@every_algorithm
@pytest.mark.parametrize(
    "args, keywords, words",
    [
        (("MlpPolicy", ENV), {}, r"takes no 'MlpPolicy': leave it out, make_\w+\(env\)\. The network follows from the obs"),
        (("CnnPolicy",), {"env": ENV}, "takes no 'CnnPolicy'"),
        ((ENV,), {"policy": "MlpLstmPolicy"}, "takes no 'MlpLstmPolicy'"),
        ((ENV, 3e-4), {}, r"takes only the environment by position; name the settings: make_\w+\(env, learning_rate=…\)$"),
    ],
)
def test_the_policy_of_other_libraries_is_left_out(algorithm: str, args: Any, keywords: Any, words: str) -> None:
    with pytest.raises(TypeError, match=rf"^make_{algorithm}\(\) {words}"):
        getattr(jaxrl, f"make_{algorithm}")(*args, **keywords)


def test_a_schedule_given_as_a_setting_is_told_where_it_belongs() -> None:
    """As in Stable-Baselines3: learning_rate=lambda left: left * 3e-4."""
    with pytest.raises(TypeError, match=r"learning_rate=… must be .*, not a function: .*schedules=\{'learning_rate': …\}"):
        small_ppo(ENV, learning_rate=lambda left: left * 3e-4)


@pytest.mark.parametrize(
    "method, words",
    [
        ("learn", r"jaxrl\.run\(agent, total_steps=…\) trains it"),  # Stable-Baselines3, PARL
        ("train", r"jaxrl\.run"),  # RLlib
        ("predict", r"jaxrl\.load_policy"),
        ("compute_single_action", r"jaxrl\.load_policy"),
        ("save", r"jaxrl\.save"),
        ("load", r"jaxrl\.restore"),
        ("get_env", r"agent\.env"),
    ],
)
def test_methods_of_other_agents(method: str, words: str) -> None:
    agent = small_ppo(ENV)
    with pytest.raises(
        AttributeError, match=rf"^an Agent holds functions and no state, and has no attribute '{method}': .*{words}"
    ):
        getattr(agent, method)
    assert not hasattr(agent, "xyzzy") and agent._replace(num_envs=3).num_envs == 3


def test_what_differs_is_said() -> None:
    with pytest.raises(
        TypeError, match=r"'exploration_steps' here \(rows over which epsilon falls, not a fraction of the run\)\."
    ):
        small_dqn(ENV, exploration_fraction=0.5)
    with pytest.raises(TypeError, match=r"'tau' here \(the fraction by which the target moves: 1 - polyak\)"):
        small_dqn(ENV, polyak=0.99)
    with pytest.raises(TypeError, match=r"It is called 'num_minibatches' here\.$"):  # same unit, nothing to add
        small_ppo(ENV, n_minibatches=2)


@pytest.mark.parametrize("name, here", [("seed", "seeds"), ("eval_freq", "eval_every"), ("out", "out"), ("verbose", "quiet")])
def test_a_builder_sends_arguments_of_run_there(name: str, here: str) -> None:
    with pytest.raises(TypeError, match=f"'{name}'. {here} is an argument of jaxrl.run, not of the builder"):
        small_ppo(ENV, **{name: 1})


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda agent: jaxrl.run(agent, total_timesteps=64),
            r"^run\(\) got an unknown keyword 'total_timesteps'. It is called 'total_steps'",
        ),
        (
            lambda agent: jaxrl.run(agent, 64, seed=3),
            r"'seed'. It is called 'seeds' here \(8 means the seeds 0 to 7; a list names them\)",
        ),
        (lambda agent: jaxrl.run(agent, 64, eval_evry=3), r"Did you mean 'eval_every'\?"),
        (
            lambda agent: jaxrl.run(agent, 64, lr=3),
            "learning_rate is a setting of the algorithm: pass it to the builder, or in hyperparams=",
        ),
        (
            lambda agent: jaxrl.run(agent, 64, num_minibatches=3),
            "Pass settings of the algorithm to its builder. Allowed: agent, total",
        ),
        (
            lambda agent: jaxrl.evaluate(agent, None, None, n_eval_episodes=3),
            r"^evaluate\(\) got.*It is called 'num_episodes' here",
        ),
        (lambda agent: jaxrl.make_train(agent, total_timesteps=3), "It is called 'total_steps' here"),
    ],
)
def test_functions_say_it_too(call: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words) as caught:
        call(small_ppo(ENV))
    assert "\n" not in str(caught.value)


def test_mappings_of_hyperparameters_and_schedules_too() -> None:
    with pytest.raises(TypeError, match=r"unknown hyperparameter 'lr'\. It is called 'learning_rate' here"):
        small_ppo(ENV).init(jax.random.key(0), {"lr": 1e-3})
    with pytest.raises(TypeError, match=r"unknown hyperparameter 'lr'\. It is called 'learning_rate' here"):
        jaxrl.run(small_ppo(ENV), 64, hyperparams={"lr": [1e-3]}, quiet=True)
    with pytest.raises(ValueError, match="It is called 'clip_eps' here"):
        check_schedules({"clip_range": lambda i: 1.0}, ("clip_eps",))


@pytest.mark.parametrize(
    "args, words",
    [
        (["--lr", "1e-3"], "--lr is called --learning-rate here"),
        (["--clip-coef", "0.1"], "--clip-coef is called --surrogate.eps here"),
        (["--num-steps=128"], "--num-steps is called --rollout-length here"),
        (["--n_envs", "8"], "--n_envs is called --num-envs here"),
        (["--no-norm-adv"], "--no-norm-adv is called --no-normalize-advantages here"),
        (["--total-timesteps", "1e5"], "--total-timesteps is called --total-steps here"),
        (["--seed", "3"], "--seed is called --seeds here: 8 means the seeds 0 to 7; a list names them"),
        (["--env-id", "CartPole-v1"], "--env-id is called --env here"),
        (["--cuda", "1"], "there is no --cuda: JAX uses the accelerator that it finds; set JAX_PLATFORMS=cpu to use the CPU"),
    ],
)
def test_flags_say_it_in_one_line(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "--env", "x", *args]) == 2
    assert capsys.readouterr().err == f"jaxrl: {words}\n"


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("total_steps", "total_timesteps", "'total_timesteps' is unknown. It is called 'total_steps' here"),
        ("env =", "env_id =", "'env_id' is unknown. It is called 'env' here"),
        ("gamma", "lr", r"\[grid\]: 'lr' is unknown. It is called 'learning_rate' here"),
        ("gamma", "clip_range", r"\[grid\]: 'clip_range' is unknown. It is called 'surrogate\.eps' here"),
    ],
)
def test_sweep_files_too(old: str, new: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text('algorithm = "ppo"\nenv = "x"\ntotal_steps = 64\n[grid]\ngamma = [0.9]\n'.replace(old, new, 1))
    with pytest.raises(ValueError, match=words):
        read_sweep(path)


@pytest.mark.parametrize(
    "name, near",
    [
        ("PPO", "make_ppo"),
        ("DQN", "make_dqn"),
        ("train", "make_train"),
        ("evalute", "evaluate"),
        ("learn", "run"),
        ("load", "load_policy"),
        ("evaluate_policy", "evaluate"),
        ("make_vec_env", "make_env"),
        ("SACConfig", "make_sac"),
        ("Rainbow", "make_rainbow"),
        ("RecurrentPPO", "make_ppo"),
    ],
)
def test_the_face_says_it_too(name: str, near: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'\. Did you mean '{near}'\?( \w+ is its settings .*\.)?$"):
        getattr(jaxrl, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nowhere'\. Public names"):
        _ = jaxrl.nowhere


@pytest.mark.parametrize("name", ELSEWHERE)
def test_algorithms_that_are_settings_here(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The flags in the hint build an agent."""
    algorithm, flags = ELSEWHERE[name]
    assert main(["train", name]) == main(["algos", name]) == 2
    line = f"jaxrl train {algorithm} --env ENV {flags}".rstrip()
    assert capsys.readouterr().err == f"jaxrl: {name} is {ALGORITHMS[algorithm].title} here: {line}\n" * 2
    on_box = algorithm in ("sac", "td3") or name in ("rpo", "d4pg")
    env = "jaxrl:BitFlip" if name == "her" else "Pendulum-v1" if on_box else "CartPole-v1"
    env = "jaxrl:Hazards" if name in ("ppolag", "cppopid") else env
    env = "tests.helpers.teams:mortal|central_state" if name in ("mappo", "pqnvdn", "qmix", "vdn", "coma", "maddpg") else env
    env = "tests.helpers.teams:wanderers|central_state" if name == "matd3" else env
    _, settings = parse(algorithm, ["--env", env, *flags.split()])
    others = {"data": random_dataset(env)} if name == "calql" else required(algorithm, env)
    ALGORITHMS[algorithm].load().make(env, **settings, **others)
    if name in ("rainbow", "cql", "mappo", "qmix", "coma", "maddpg"):
        assert ALGORITHMS[algorithm].load().make(env, **settings).spec == getattr(jaxrl, f"make_{name}")(env).spec
    path = tmp_path / "grid.toml"
    path.write_text(f'algorithm = "{name}"\nenv = "x"\ntotal_steps = 64\n[grid]\ngamma = [0.9]\n')
    with pytest.raises(ValueError, match=f"grid.toml: {name} is "):
        read_sweep(path)


def test_names_of_algorithms_in_other_letters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "QR-DQN"]) == main(["train", "PPO", "--env", "CartPole-v1"]) == main(["train", "pppo"]) == 2
    qr, upper, near = capsys.readouterr().err.splitlines()
    assert qr == "jaxrl: QR-DQN is DQN here: jaxrl train dqn --env ENV --head qr"
    assert upper == "jaxrl: unknown algorithm 'PPO': write ppo" and "'pppo'. Did you mean 'ppo'?" in near


# --------------------------------------------------------------------------------------------------------------- the table itself


def all_settings(algorithm: str) -> list[str]:
    """Return the names of an algorithm's settings, its options, and their fields."""
    config: Any = ALGORITHMS[algorithm].load().config
    structure, data = setting_names(algorithm)
    return [*structure, *data, *option_fields(config), *dotted_names(config)]


def test_every_name_on_the_right_exists() -> None:
    builders = set().union(*(keywords(getattr(jaxrl, f"make_{name}")) for name in ALGORITHM_NAMES))
    settings = {name for algorithm in ALGORITHM_NAMES for name in all_settings(algorithm)}
    settings |= {name for entry in ALGORITHMS.values() for name in entry.load().hyperparams._fields}
    sweep, options = set(SweepFile.__dataclass_fields__), set(run_flags().__dataclass_fields__)
    known = builders | settings | sweep | options | keywords(jaxrl.run) | keywords(jaxrl.evaluate)
    assert set(alias_table()["settings"]) <= known and {entry.get("needs", "tau") for entry in alias_table()["instead"]} <= known
    assert {"seeds", "out", "eval_every", "quiet"} < set(run_arguments()) < keywords(jaxrl.run)


@every_algorithm
def test_a_name_from_elsewhere_means_one_thing(algorithm: str) -> None:
    settings, table = all_settings(algorithm), alias_table()["settings"]

    def names(here: str, entry: dict[str, str]) -> list[str]:
        like = entry.get("like", here)
        return [*([like] if like != here else []), *table[like].get("names", "").lower().split()]

    for allowed in ({*settings, "total_steps"}, {*settings, *run_flags().__dataclass_fields__}, run_arguments()):
        listed = [name for here, entry in table.items() if here in allowed for name in names(here, entry)]
        assert len(listed) == len(set(listed)), {name for name in listed if listed.count(name) > 1}


def test_a_rate_of_the_policy_is_its_own_where_there_is_one() -> None:
    for name, own in {"actor_lr": "actor_learning_rate", "alpha": "temperature"}.items():
        assert translate_alias(name, ["learning_rate"]) == ("learning_rate", "")
        found = translate_alias(name, ["learning_rate", own])
        assert found is not None and found[0] == own


def test_names_that_exist_are_left_alone() -> None:
    assert translate_alias("batch_size", ["batch_size", "num_minibatches"]) == ("batch_size", "")
    assert translate_alias("batch-size", ["num_envs"]) is None and translate_alias("xyzzy", ["num_envs"]) is None
