"""Keywords of networks: each in one config, and all in the signature and help of the functions that take them."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import models
from jaxrl.models.config import (
    ActionValueConfig,
    ActorCriticConfig,
    CoreConfig,
    GreedyPolicyConfig,
    NetworkConfig,
    PolicyNetworkConfig,
    QNetworkConfig,
    ValueNetworkConfig,
)
from jaxrl.settings.docstrings import entries

CONFIGS: dict[str, Any] = {
    "actor_critic": ActorCriticConfig,
    "q_network": QNetworkConfig,
    "value_network": ValueNetworkConfig,
    "policy_network": PolicyNetworkConfig,
    "deterministic_policy": CoreConfig,
    "action_value": ActionValueConfig,
    "greedy_policy": GreedyPolicyConfig,
}
VECTOR, BOX, DISCRETE = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(4)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_network_takes_the_fields_of_its_config(name: str) -> None:
    network, config = getattr(models, name), CONFIGS[name]
    observation_space, action_space, *keywords = inspect.signature(network).parameters.values()
    assert observation_space.name == "observation_space" and action_space.name == "action_space" and network.config is config
    assert {p.name: p.default for p in keywords} == {field.name: field.default for field in dataclasses.fields(config)}
    assert all(p.kind is p.KEYWORD_ONLY for p in keywords) and {"encoder", "hidden_sizes", "dtype"} <= {p.name for p in keywords}


@pytest.mark.parametrize("name", CONFIGS)
def test_help_of_a_network_lists_all_its_keywords(name: str) -> None:
    network = getattr(models, name)
    assert list(entries("Args", network)) == list(inspect.signature(network).parameters)
    assert list(entries("Raises", network)) == ["ValueError", "TypeError"]


def test_a_text_replaces_those_of_more_general_configs() -> None:
    assert 'else "tanh"' in entries("Args", models.actor_critic)["activation"]
    assert "tanh." not in entries("Args", models.q_network)["activation"]
    assert entries("Args", models.action_value)["hidden_sizes"].startswith("default: (256, 256)")
    assert "the core" in entries("Args", models.q_network)["hidden_sizes"]


def test_values_become_plain() -> None:
    given = CoreConfig(hidden_sizes=[8, 4], channel_multiplier=np.int64(2), core="gru", core_size=8.0)  # type: ignore[arg-type]
    assert given == CoreConfig(hidden_sizes=(8, 4), channel_multiplier=2, core="gru", core_size=8)
    assert {type(size) for size in NetworkConfig(hidden_sizes=(np.int64(8), 4)).hidden_sizes} == {int}  # type: ignore[arg-type]
    assert type(given.core_size) is type(given.channel_multiplier) is int
    model = models.actor_critic(VECTOR, DISCRETE, core="gru", core_size=8.0)  # type: ignore[arg-type]
    assert jax.tree.map(np.shape, model.initial_carry(3)) == (3, 8)


@pytest.mark.parametrize(
    "config, settings, error",
    [
        (NetworkConfig, {"layer_norm": "yes"}, "layer_norm='yes' must be True or False"),
        (NetworkConfig, {"layer_norm": None}, "layer_norm=None must be True or False"),
        (NetworkConfig, {"residual": True, "layer_norm": True}, "residual=True and layer_norm=True are mutually exclusive"),
        (ActionValueConfig, {"residual": True, "dropout": 0.1}, r"residual=True and dropout=0\.1 are mutually exclusive"),
        (
            NetworkConfig,
            {"residual": True, "hidden_sizes": (8, 4)},
            r"hidden_sizes=\(8, 4\) must all be equal with residual=True",
        ),
        (NetworkConfig, {"residual": True, "hidden_sizes": ()}, r"residual=True has no effect with hidden_sizes=\(\)"),
        (NetworkConfig, {"use_previous": 1}, "use_previous=1 must be True or False"),
        (NetworkConfig, {"channel_multiplier": 0}, "channel_multiplier=0 must be an integer >= 1"),
        (NetworkConfig, {"embedding_size": 1.5}, "embedding_size=1.5 must be an integer >= 1"),
        (NetworkConfig, {"convolution": "slice"}, "convolution='slice' is unknown: .* Did you mean 'slices'"),
        (ActorCriticConfig, {"shared": "no"}, "shared='no' must be True or False"),
        (ActorCriticConfig, {"squash": None}, "squash=None must be True or False"),
        (QNetworkConfig, {"dueling": 1}, "dueling=1 must be True or False"),
        (QNetworkConfig, {"dueling": True, "core": "gru"}, "core='gru' and dueling=True are mutually exclusive: leave one out"),
        (ActionValueConfig, {"dropout": 0.995}, r"dropout=0.995 is not allowed: it must be a number in \[0, 0.99\]"),
    ],
)
def test_a_config_checks_itself(config: Any, settings: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{error}"):
        config(**settings)


@pytest.mark.parametrize("name, keyword", [("actor_critic", "cor"), ("policy_network", "dueling"), ("q_network", "squash")])
def test_an_unknown_keyword_is_refused_by_the_function(name: str, keyword: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument '{keyword}'$"):
        getattr(models, name)(VECTOR, DISCRETE, **{keyword: "gru"})
