"""Options: how they are written, in Python, flags, sweep files and config files, and what each of these says of a wrong one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest

import jaxrl
from jaxrl import options
from jaxrl.algorithms import ALGORITHMS
from jaxrl.builder.settings import split_settings
from jaxrl.builder.spec import build
from jaxrl.options import C51, OU, QR, Clip, Double, LearnedTemperature, Prioritized, Scalar
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.search.sweep import read_sweep
from jaxrl.settings.options import (
    Option,
    as_data,
    dotted_names,
    hyperparameter,
    hyperparameters_of,
    option,
    option_fields,
    resolve_option,
    with_dotted,
)
from jaxrl.settings.validation import Count, Unit, setting_types
from tests.helpers.agents import ALGORITHM_NAMES, TAUGHT, gymnax_id, required, slow_unless

Write = Callable[[str, dict[str, Any], Path], None]
"""(algorithm, settings, folder): say the settings in one of four ways. Raises an error with one line if they are wrong."""


# ----------------------------------------------------------------------------------------------------------------------- errors


def in_python(algorithm: str, settings: dict[str, Any], _: Path) -> None:
    getattr(jaxrl, f"make_{algorithm}")(gymnax_id(algorithm), **settings)


def in_config(algorithm: str, settings: dict[str, Any], folder: Path) -> None:
    env = gymnax_id(algorithm)
    teacher = required(algorithm, env) if algorithm in TAUGHT else {}
    spec = copy.deepcopy(getattr(jaxrl, f"make_{algorithm}")(env, **teacher).spec)
    spec["settings"] |= settings
    (folder / "config.json").write_text(json.dumps(spec))
    build(json.loads((folder / "config.json").read_text()))


def in_a_sweep(algorithm: str, settings: dict[str, Any], folder: Path) -> None:
    lines = [f"{json.dumps(name)} = {toml(value)}" for name, value in settings.items()]
    file = folder / "sweep.toml"
    head = f'algorithm = "{algorithm}"\nenv = "{gymnax_id(algorithm)}"\nseeds = 2\ntotal_steps = 8192\n\n[settings]\n'
    file.write_text(head + "\n".join(lines) + "\n\n[grid]\nlearning_rate = [0.01]\n")
    read_sweep(file)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml(x)}" for name, x in value.items()) + " }"
    return json.dumps(value)


def in_flags(algorithm: str, settings: dict[str, Any], folder: Path) -> None:
    """As one types it; what the command line prints is raised."""
    words = []
    for name, value in settings.items():
        fields = value if isinstance(value, dict) else {"name": value}
        for field, x in fields.items():
            words += [f"--{name}" if field == "name" else f"--{name}.{field}".replace("_", "-"), str(x)]
    with pytest.MonkeyPatch.context() as patch:
        errors: list[str] = []
        patch.setattr("sys.stderr", type("Err", (), {"write": lambda _, text: errors.append(text), "flush": lambda _: None})())
        code = main(
            ["train", algorithm, "--env", gymnax_id(algorithm), "--out", str(folder / "run"), "--total-steps", "1", *words]
        )
    text = "".join(errors)
    assert code == 2 and text.startswith("jaxrl: ") and text.endswith("\n"), text
    raise ValueError(text[:-1])


WAYS: dict[str, Write] = {"python": in_python, "config": in_config, "sweep": in_a_sweep, "flags": in_flags}
PLACES = [
    pytest.param(name, setting, kind, id=f"{name}-{setting}-{kind.name}")
    for name in ALGORITHM_NAMES
    for setting, kinds in option_fields(ALGORITHMS[name].load().config).items()
    for kind in kinds
    if kind is not None
]
"""Each option in each place that takes it."""
FIRST = {place.values[2]: place.id for place in reversed(PLACES)}
ONE_OF_EACH = [
    pytest.param(*place.values, id=place.id, marks=slow_unless(place.id == FIRST[place.values[2]])) for place in PLACES
]
"""The same; all but the first place of an option are slow."""


def wrong_ones(setting: str, kind: Any, kinds: Any) -> list[tuple[dict[str, Any], str]]:
    """Return wrong settings, and words of the error: an unknown field, wrong values, an unknown name, and a field of another."""
    fields = setting_types(kind)
    found = [
        ({setting: {"name": kind.name, "colour": 1}}, "colour"),
        ({setting: f"{kind.name}x"}, f"{kind.name}"),
        *(({setting: {"name": kind.name, field: "red"}}, "red") for field in fields),
    ]
    for other in kinds:
        strange = [field for field in (setting_types(other) if other else ()) if field not in fields]
        found += [({setting: {"name": kind.name, field: 1}}, field) for field in strange[:1]]
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("algorithm", "setting", "kind"), ONE_OF_EACH)
def test_a_wrong_option_gives_one_line(way: str, algorithm: str, setting: str, kind: Any, tmp_path: Path) -> None:
    kinds = option_fields(ALGORITHMS[algorithm].load().config)[setting]
    for settings, word in wrong_ones(setting, kind, kinds):
        with pytest.raises((TypeError, ValueError)) as error:
            WAYS[way](algorithm, settings, tmp_path)
        text = str(error.value).replace("-", "_")  # as flags are written
        assert "\n" not in text and word in text and setting in text, text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (C51, "head=C51 is a class: write head=C51()"),
        (
            Double(),
            r"head=Double\(\) must be Scalar\(…\), C51\(…\), HLGauss\(…\), QR\(…\) or IQN\(…\), or its name: "
            "'scalar', 'c51', 'hl_gauss', 'qr' or 'iqn'",
        ),
        (None, r"head=None must be Scalar"),
        (7, r"head=7 must be Scalar"),
        ("c5", r"head='c5' is unknown\. Did you mean 'c51'\?"),
        ({"v_max": 3}, r"head='scalar' has no field 'v_max'\. It is a field of C51: choose head='c51' too\."),
        ({"name": "c51", "vmax": 3}, r"head: C51 has no field 'vmax'\. Did you mean 'v_max'\?"),
        ({"name": "c51", "v_max": "high"}, r"head=C51: v_max='high' must be a finite number"),
        ({"name": "scalar", "colour": 3}, r"head: Scalar has no field 'colour'\. It has none\."),
        ({"name": 3}, "head=3 must be Scalar"),
    ],
)
def test_what_is_no_option_is_explained(value: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{words}"):
        jaxrl.make_dqn("CartPole-v1", head=value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: C51(v_maks=1), r"C51 has no field 'v_maks'\. Did you mean 'v_max'\?"),
        (lambda: C51(num_atoms=1), "C51: num_atoms=1 must be an integer >= 2"),
        (lambda: C51(v_min=5.0, v_max=5.0), "C51: v_min=5 must be below v_max=5"),
        (lambda: Clip(eps=-1.0), r"Clip: eps=-1 is not allowed"),
        (lambda: Prioritized(exponent=2), "Prioritized: exponent=2 is not allowed"),
        (lambda: OU(theta=True), "OU: theta=True must be"),
        (lambda: LearnedTemperature(initial=0), "LearnedTemperature: initial=0 is not allowed"),
    ],
)
def test_options_check_themselves(make: Callable[[], Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{words}"):
        make()


def test_options_are_frozen_values() -> None:
    assert C51(v_max=20) == C51(v_max=20.0) != C51() and hash(QR()) == hash(QR())
    with pytest.raises(dataclasses.FrozenInstanceError):
        C51().v_max = 3  # type: ignore[misc]


# ---------------------------------------------------------------------------------------------------------------------- writing


def test_the_public_module_has_all_options_and_no_other() -> None:
    used = {kind for name in ALGORITHMS for kinds in option_fields(ALGORITHMS[name].load().config).values() for kind in kinds}
    assert {getattr(options, name) for name in options.__all__} == used - {None}
    assert all(inspect.getdoc(kind) and kind.__name__ == name for name, kind in vars(options).items() if name in options.__all__)


@pytest.mark.parametrize(("algorithm", "setting", "kind"), PLACES)
def test_an_option_is_written_in_four_ways(algorithm: str, setting: str, kind: Any) -> None:
    """As an object, a mapping and a name; and as the data of a spec, which builds the same agent."""
    kinds, default = option_fields(ALGORITHMS[algorithm].load().config)[setting], ALGORITHMS[algorithm].load().config()
    base = getattr(default, setting)
    value = base if type(base) is kind else kind()
    data: Any = as_data(value)
    for written in (value, data, kind.name, {"name": kind.name}):
        assert resolve_option(setting, written, kinds, base) == value
    assert json.loads(json.dumps(data)) == data
    for field in setting_types(kind):
        assert with_dotted({setting: kind.name, f"{setting}.{field}": 3}) == {setting: {"name": kind.name, field: 3}}
        assert with_dotted({f"{setting}.{field}": 3, setting: value}) == {setting: {**data, field: 3}}


def test_a_mapping_without_a_name_changes_the_default() -> None:
    assert jaxrl.make_sac("Pendulum-v1", critics={"size": 3}).spec == jaxrl.make_sac("Pendulum-v1", **{"critics.size": 3}).spec
    kinds = (Scalar, C51, None)
    assert resolve_option("head", {"v_min": 0}, kinds, C51(v_max=20)) == C51(v_min=0, v_max=20)
    assert resolve_option("head", "none", kinds, C51()) is resolve_option("head", None, kinds, C51()) is None
    with pytest.raises(ValueError, match=r"head=\{'v_min': 0\} must have a name: 'scalar', 'c51' or 'none'"):
        resolve_option("head", {"v_min": 0}, kinds, None)
    with pytest.raises(TypeError, match="head='none' has no field 'v_min'"):
        resolve_option("head", {"name": "none", "v_min": 0}, kinds, C51())


def test_a_dotted_name_needs_an_option() -> None:
    with pytest.raises(TypeError, match=r"head\.v_max=3 has no effect with head=7"):
        jaxrl.make_dqn("CartPole-v1", **{"head": 7, "head.v_max": 3})


# -------------------------------------------------------------------------------------------------------------- hyperparameters


def test_numbers_of_options_are_data() -> None:
    """One program for several values, under the names of the hyperparameters."""
    agent = jaxrl.make_ppo("CartPole-v1", surrogate=Clip(eps=0.3), num_envs=2, rollout_length=4, num_minibatches=1)
    assert float(agent.hyperparams.clip_eps) == pytest.approx(0.3)
    states = jax.vmap(lambda eps: agent.init(jax.random.key(0), {"clip_eps": eps}))(jax.numpy.array([0.1, 0.2]))
    assert states.learner.hyperparams.clip_eps.tolist() == pytest.approx([0.1, 0.2])
    with pytest.raises(TypeError, match=r"unknown keyword 'clip_eps'\. It is a field of an option: surrogate=Clip\(eps=…\)"):
        jaxrl.make_ppo("CartPole-v1", clip_eps=0.3)


@option("custom")
class Custom(Option):
    """An option of a user's algorithm."""

    share: Unit = hyperparameter("custom_share", 0.5)
    size: Count = 3

    def check(self) -> None:
        if self.size > 9:
            raise ValueError(f"size={self.size} must be at most 9")


@dataclasses.dataclass(frozen=True)
class Config:
    custom: Custom | None = None


class Hyperparams(NamedTuple):
    custom_share: Unit = 0.5


class Nothing(NamedTuple):
    gamma: Unit = 0.5


def test_an_option_of_a_users_algorithm() -> None:
    assert option_fields(Config) == {"custom": (Custom, None)}
    assert dotted_names(Config) == {"custom.share": (Custom,), "custom.size": (Custom,)}
    assert [*hyperparameters_of(Config(Custom(share=0.25)))] == [("custom_share", 0.25)] and not [*hyperparameters_of(Config())]
    with pytest.raises(ValueError, match=r"^Custom: size=10 must be at most 9"):
        Custom(size=10)
    assert as_data(Custom()) == {"name": "custom", "share": 0.5, "size": 3}
    config, hyperparams = split_settings("make", Config, Hyperparams, {"custom": {"name": "custom", "share": 0.25}})
    assert config == Config(Custom(share=0.25)) and hyperparams == Hyperparams(custom_share=0.25)
    with pytest.raises(TypeError, match=r"custom=Custom\(share=…\) is the hyperparameter 'custom_share', which Nothing lacks"):
        split_settings("make", Config, Nothing, {})
