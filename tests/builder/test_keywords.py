"""Keywords of builders: each family's signature and texts, in one place."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import jaxrl
from jaxrl.builder.keywords import replay_keywords, split_keywords, with_keywords_of
from jaxrl.registry import ALGORITHMS
from jaxrl.replay.options import Prioritized
from jaxrl.settings.docstrings import entries
from jaxrl.types import Agent, EnvLike


@with_keywords_of(replay_keywords)
def make_mine(env: EnvLike, **keywords: Any) -> Agent:
    """My algorithm.

    Two paragraphs.

    Args:
      model: my model,
        of two lines.

    Raises:
      OSError: never.
    """
    raise NotImplementedError(keywords)


def test_a_builder_replaces_texts_of_its_family() -> None:
    assert inspect.signature(make_mine) == inspect.signature(replay_keywords)
    args = entries("Args", make_mine)
    assert " ".join(args) == "env model optimizer replay data schedules axis_name settings"
    assert args["model"] == "my model,\n    of two lines." and "ReplayFn" in args["replay"] and "an Env" in args["env"]
    assert list(entries("Raises", make_mine)) == ["TypeError", "ValueError", "OSError"]
    assert str(inspect.getdoc(make_mine)).startswith("My algorithm.\n\nTwo paragraphs.\n\nArgs:\n  env: ")


def test_parts_are_the_keywords_of_the_family_and_others_are_settings() -> None:
    settings, parts = split_keywords(make_mine, {"gamma": 0.9, "replay": 1, "extra_losses": 2})
    assert settings == {"gamma": 0.9, "extra_losses": 2}
    assert list(parts.items()) == [
        ("model", None),
        ("optimizer", None),
        ("replay", 1),
        ("data", None),
        ("schedules", None),
        ("axis_name", None),
    ]


@pytest.mark.parametrize("replay", ["prioritized", {"exponent": 0.5}, Prioritized(), Prioritized])
def test_an_option_of_replay_is_a_setting(replay: Any) -> None:
    settings, parts = split_keywords(make_mine, {"gamma": 0.9, "replay": replay})
    assert settings == {"gamma": 0.9, "replay": replay} and parts["replay"] is None


@pytest.mark.parametrize("name", ALGORITHMS)
def test_help_of_a_builder_lists_all_keywords_and_names_its_settings(name: str) -> None:
    builder, entry = getattr(jaxrl, f"make_{name}"), ALGORITHMS[name]
    args = entries("Args", builder)
    assert list(args) == list(inspect.signature(builder).parameters) and builder.__name__ == entry.builder
    assert args["settings"] == f"fields of ``{entry.config}`` and ``{entry.hyperparams}``."
