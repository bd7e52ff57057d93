"""Specs of jaxrl 0.2, with flat settings, give the agents that they described."""

from __future__ import annotations

import json
from typing import Any

import pytest

import jaxrl
from jaxrl.builder.old_specs import NETWORK_ARGUMENTS, OLD, converted
from jaxrl.builder.spec import build
from jaxrl.options import (
    C51,
    IQN,
    OU,
    QR,
    Clip,
    Ensemble,
    Episode,
    FixedTemperature,
    Future,
    Gaussian,
    Greedy,
    KLPenalty,
    LearnedTemperature,
    Munchausen,
    Noisy,
    Optimistic,
    Prioritized,
    Quantiles,
    Rescale,
    Sequence,
    Spread,
)
from jaxrl.settings.options import option_fields
from tests.helpers.agents import ALGORITHM_NAMES, gymnax_id, required
from tests.helpers.paths import ROOT

GOALS = "jaxrl:BitFlip?n=4"
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("ppo", "CartPole-v1", {"clip_eps": 0.3, "clip_value_loss": True}, {"surrogate": Clip(eps=0.3, value_loss=True)}),
    ("ppo", "CartPole-v1", {"clip_eps": 0.2, "clip_value_loss": False, "surrogate": "clip"}, {}),
    (
        "ppo",
        "CartPole-v1",
        {"clip_eps": 0.2, "surrogate": "kl", "kl_coef": 2.0, "kl_target": 0.02},
        {"surrogate": KLPenalty(coef=2.0, target=0.02)},
    ),
    ("dqn", "CartPole-v1", {}, {}),
    ("dqn", "CartPole-v1", {"double": False}, {"bootstrap": Greedy()}),
    ("dqn", "CartPole-v1", {"double": True, "munchausen": 0.0, "munchausen_clip": 2.0}, {}),
    (
        "dqn",
        "CartPole-v1",
        {"double": False, "munchausen": 0.8, "munchausen_temperature": 0.05, "munchausen_clip": 2.0},
        {"bootstrap": Munchausen(weight=0.8, temperature=0.05, clip=2.0)},
    ),
    (
        "dqn",
        "CartPole-v1",
        {"head": "c51", "num_atoms": 11, "v_max": 20.0, "num_quantiles": 8},
        {"head": C51(num_atoms=11, v_max=20)},
    ),
    ("dqn", "CartPole-v1", {"head": "qr", "num_quantiles": 8, "v_max": 20.0}, {"head": QR(num_quantiles=8)}),
    ("dqn", "CartPole-v1", {"head": "iqn", "huber_threshold": 0.5}, {"head": IQN(huber_threshold=0.5)}),
    ("dqn", "CartPole-v1", {"head": "scalar", "num_atoms": 51}, {}),
    ("dqn", "CartPole-v1", {"prioritized": False, "priority_exponent": 0.6}, {}),
    (
        "dqn",
        "CartPole-v1",
        {"prioritized": True, "priority_exponent": 0.5, "importance_exponent": 0.6},
        {"replay": Prioritized(exponent=0.5, importance_exponent=0.6)},
    ),
    ("dqn", "CartPole-v1", {"noisy": True, "noisy_sigma": 0.4, "epsilon_exponent": 0.0}, {"noise": Noisy(sigma=0.4)}),
    ("dqn", "CartPole-v1", {"epsilon_exponent": 5.0, "noisy": False}, {"exploration": Spread(exponent=5)}),
    ("dqn", "CartPole-v1", {"dueling": True}, {"model": {"dueling": True}}),
    ("dqn", GOALS, {"hindsight": "future", "hindsight_share": 0.5}, {"hindsight": Future(share=0.5)}),
    ("dqn", GOALS, {"hindsight": "none", "hindsight_share": 0.5}, {}),
    ("pqn", "CartPole-v1", {"epsilon_exponent": 5.0, "normalize_layers": True}, {"exploration": Spread(exponent=5)}),
    ("pqn", "CartPole-v1", {"normalize_layers": False}, {"model": {"layer_norm": False}}),
    (
        "r2d2",
        "CartPole-v1",
        {"priority_exponent": 0.7, "importance_exponent": 0.5, "rescale": False, "rescale_eps": 1e-3},
        {"replay": Sequence(exponent=0.7, importance_exponent=0.5), "rescale": None},
    ),
    ("r2d2", "CartPole-v1", {"rescale": True, "rescale_eps": 0.01}, {"rescale": Rescale(eps=0.01)}),
    ("r2d2", "CartPole-v1", {"epsilon_exponent": 7.0}, {"exploration": Spread(exponent=7)}),
    ("sac", "Pendulum-v1", {"num_critics": 5, "num_target_critics": 2}, {"critics": Ensemble(size=5, subset=2)}),
    (
        "sac",
        "Pendulum-v1",
        {"num_critics": 3, "num_quantiles": 7, "dropped_quantiles": 1, "num_target_critics": 0},
        {"critics": Quantiles(size=3, num_quantiles=7, dropped=1)},
    ),
    (
        "sac",
        "Pendulum-v1",
        {"learn_temperature": False, "temperature": 0.2, "box_entropy": 1.0, "temperature_learning_rate": 1e-3},
        {"temperature": FixedTemperature(value=0.2)},
    ),
    (
        "sac",
        "Pendulum-v1",
        {"learn_temperature": True, "temperature": 0.2, "box_entropy": 0.5, "temperature_learning_rate": 1e-2},
        {"temperature": LearnedTemperature(initial=0.2, box_entropy=0.5, learning_rate=1e-2)},
    ),
    ("sac", "Pendulum-v1", {"optimistic": True, "optimism_beta": 3.0}, {"exploration": Optimistic(beta=3)}),
    (
        "sac",
        "Pendulum-v1",
        {"critic_layer_norm": True, "critic_dropout": 0.1, "num_critics": 2},
        {"critic": {"layer_norm": True, "dropout": 0.1}},
    ),
    ("td3", "Pendulum-v1", {"noise": "ou", "ou_theta": 0.2, "hold_noise": 1}, {"noise": OU(theta=0.2)}),
    ("td3", "Pendulum-v1", {"noise": "gaussian", "hold_noise": 4, "num_critics": 2}, {"noise": Gaussian(hold=4)}),
    ("td3", "jaxrl:Reach", {"hindsight": "episode", "hindsight_share": 0.5}, {"hindsight": Episode(share=0.5)}),
    ("ddpg", "Pendulum-v1", {"num_critics": 1, "noise": "gaussian", "hold_noise": 1}, {}),
]


def old_spec(algorithm: str, env: str, flat: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of an agent with flat settings in place of its options."""
    spec = getattr(jaxrl, f"make_{algorithm}")(env).spec
    options = option_fields(jaxrl.algorithms.ALGORITHMS[algorithm].load().config)
    return {**spec, "settings": {name: value for name, value in spec["settings"].items() if name not in options} | flat}


@pytest.mark.parametrize(("algorithm", "env", "flat", "now"), CASES)
def test_flat_settings_are_options(algorithm: str, env: str, flat: dict[str, Any], now: dict[str, Any]) -> None:
    expected = getattr(jaxrl, f"make_{algorithm}")(env, **now).spec
    assert build(old_spec(algorithm, env, flat)).spec == expected


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
def test_specs_of_today_stay_as_they_are(algorithm: str) -> None:
    env = gymnax_id(algorithm)
    spec = getattr(jaxrl, f"make_{algorithm}")(env, **required(algorithm, env)).spec
    assert converted(spec) == spec == converted(converted(spec))
    assert converted(json.loads(json.dumps(spec))) == spec


def test_every_option_that_was_flat_is_tried() -> None:
    tried = {(algorithm, name) for algorithm, _, _, now in CASES for name in now}
    assert {(algorithm, name) for algorithm in OLD for name in OLD[algorithm]} - tried <= {
        *((algorithm, name) for algorithm in ("td3", "ddpg") for name in OLD[algorithm]),
        ("sac", "hindsight"),  # the functions of others
    }
    assert {*NETWORK_ARGUMENTS} <= {name for _, _, flat, _ in CASES for name in flat}


def test_a_wrong_old_setting_is_refused() -> None:
    with pytest.raises(ValueError, match=r"surrogate='klip' is unknown\. Did you mean 'clip'\?"):
        build(old_spec("ppo", "CartPole-v1", {"surrogate": "klip"}))
    with pytest.raises(ValueError, match=r"head='c52' is unknown"):
        build(old_spec("dqn", "CartPole-v1", {"head": "c52"}))


def test_what_is_no_spec_of_jaxrl_is_left_alone() -> None:
    for spec in ({}, {"builder": "x"}, {"builder": {"import": "mine:make_dqn"}, "settings": {"double": False}}, {"settings": 3}):
        assert converted(spec) == spec


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks/results/scores").glob("*.json")), ids=lambda path: path.stem)
def test_measured_specs_are_still_those_of_agents(path: Any) -> None:
    """Of results of any version: every setting is known."""
    spec = converted(json.loads(path.read_text())["spec"])
    algorithm = spec["builder"]["import"].rpartition(":make_")[2]
    config, hyperparams = (getattr(jaxrl.algorithms.ALGORITHMS[algorithm].load(), kind) for kind in ("config", "hyperparams"))
    assert {*spec["settings"]} <= {*config.__dataclass_fields__, *hyperparams._fields}
