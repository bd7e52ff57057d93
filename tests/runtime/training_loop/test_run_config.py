"""``RunConfig``: the keywords of ``run`` as one value, its equality, and its record in ``config.json``."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator
from typing import Any

import pytest

import jaxrl
from jaxrl.runtime import run as run_module
from jaxrl.runtime.actors.scheme import Scheme
from jaxrl.runtime.training_loop import run_config
from jaxrl.runtime.training_loop.plan import make_plan
from jaxrl.runtime.training_loop.run_config import Collection, RunConfig, Settings, recorded_config, setting_fields
from jaxrl.types import Agent
from tests.helpers import probes
from tests.helpers.agents import small_ppo
from tests.helpers.hosted import hosted

NOT_SETTINGS = {"agent", "out", "on_chunk", "init_from", "init_which", "exact_steps", "quiet"}
"""Arguments of ``run`` that are not settings which ``config.json`` stores in ``run`` or ``output``."""

OTHER: dict[str, Any] = {
    "total_steps": 96,
    "seeds": [3, 5],
    "hyperparams": {"gamma": [0.5, 0.75], "clip_eps": 0.25},
    "chunk_iterations": 3,
    "on_nan": "stop",
    "eval_every": 4,
    "eval_episodes": 5,
    "eval_explore": True,
    "stop_at": 6.0,
    "sampler": "alternating",
    "overlap": True,
    "scheme": Scheme(num_workers=2),
    "num_workers": 1,
    "engine": "ray",
    "placement": "spread",
    "insecure": True,
    "checkpoint_every": 7.0,
    "keep_checkpoints": 8,
    "save_replay": False,
    "tensorboard": False,
    "wandb": "project",
    "devices_per_seed": 2,
}
"""A value of each setting that is not its default."""

WRITTEN: dict[str, Any] = {
    "run": {
        "total_steps": 64,
        "iterations": 2,
        "warmup_iterations": 0,
        "rows_per_iteration": 32,
        "chunk_iterations": 2,
        "eval_every": 0,
        "eval_episodes": 3,
        "stop_at": None,
        "on_nan": "drop",
        "eval_explore": False,
        "eval_share": None,
        "seeds": [0, 1],
        "hyperparams": None,
        "save_replay": True,
    },
    "output": {"checkpoint_every": 60.0, "keep_checkpoints": 3, "tensorboard": True, "wandb": None, "devices_per_seed": None},
}
"""Parts of ``config.json`` as written before there was a ``RunConfig``."""

SCHEME_2 = {
    "num_workers": 2,
    "inference": "workers",
    "clock": "deterministic",
    "lag": 0,
    "gradients": "learner",
    "updates": "learner",
    "sync_fraction": 1.0,
    "max_restarts": 10,
    "timeout": 60.0,
    "pin": False,
}
"""A scheme of two workers, as written before workers could be on Ray."""


@pytest.fixture(autouse=True)
def with_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package were installed."""
    monkeypatch.setattr(run_config, "import_wandb", lambda: None)


def values(settings: Settings) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        yield from values(value) if isinstance(value, Settings) else [(field.name, value)]


def sections(config: RunConfig) -> dict[str, Any]:
    """Return the settings as ``config.json`` stores them, after a round trip through JSON."""
    return json.loads(json.dumps({"run": config.as_plain(compared=True), "output": config.as_plain(compared=False)}))


def test_every_keyword_of_run_is_a_setting_with_the_same_default() -> None:
    signature = inspect.signature(run_module.run).parameters
    settings = {name: field.default for name, (_, field) in setting_fields(RunConfig).items()}
    assert set(signature) == {*settings} | NOT_SETTINGS and not {*settings} & NOT_SETTINGS
    assert {name: signature[name].default for name in settings if name != "total_steps"} == {
        name: default for name, default in settings.items() if name != "total_steps"
    }


def test_every_keyword_reaches_its_setting(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunConfig] = []
    monkeypatch.setattr(run_module, "_run", lambda agent, config, *rest, **others: seen.append(config))
    jaxrl.run(agent, **OTHER)
    assert dict(values(seen[0])) == OTHER and seen[0] == RunConfig.of(OTHER)


@pytest.mark.parametrize("name", OTHER)
def test_configs_are_equal_if_what_counts_is(name: str) -> None:
    """What may change on a resume is stored in ``output``, all else in ``run``."""
    plain, other = RunConfig(64), RunConfig.of({"total_steps": 64, name: OTHER[name]})
    in_run, in_output = (sections(other)[part] != sections(plain)[part] for part in ("run", "output"))
    assert (plain == other) is not in_run and in_run is not in_output
    assert in_output == (name in {*WRITTEN["output"], "engine", "placement", "insecure"})


def test_resume_reads_back_what_was_recorded() -> None:
    for changed in OTHER:
        config = RunConfig.of({"total_steps": 64, "seeds": 2, changed: OTHER[changed]})
        recorded = recorded_config(sections(config), "run")
        if changed == "scheme":  # a mapping of its fields, which `for_agent` reads
            recorded = dataclasses.replace(recorded, collection=Collection(scheme=Scheme(**recorded.collection.scheme)))
        assert dict(values(recorded)) == dict(values(config))


def test_the_record_of_a_run_keeps_its_keys(agent: Agent) -> None:
    """So that folders written before can be resumed, and later ones be read by earlier versions."""
    config = RunConfig.of({"total_steps": 40, "seeds": 2, "chunk_iterations": 2, "eval_every": 0, "eval_episodes": 3})
    plan = make_plan(agent, config.for_agent(agent))
    assert {"run": plan.request(), "output": config.as_plain(compared=False)} == WRITTEN
    before = recorded_config(WRITTEN, "run")
    assert before == plan.config and make_plan(agent, before.for_agent(agent), WRITTEN["run"]) == plan
    on_host = small_ppo(hosted(probes.truncation()))
    words = {"total_steps": 64, "seeds": 2, "chunk_iterations": 2, "eval_every": 0, "eval_episodes": 3}
    alternating = RunConfig.of({**words, "sampler": "alternating"}).for_agent(on_host)
    assert make_plan(on_host, alternating).request() == WRITTEN["run"] | {"sampler": "alternating"}
    scheme = RunConfig.of({**words, "scheme": "a2c", "num_workers": 2}).for_agent(on_host)
    assert make_plan(on_host, scheme).request() == WRITTEN["run"] | {"scheme": SCHEME_2}


@pytest.mark.parametrize("name", ["total_steps", "hyperparams", "on_nan", "save_replay"])
def test_a_setting_that_a_record_lacks_is_named(name: str) -> None:
    request = {key: value for key, value in WRITTEN["run"].items() if key != name}
    with pytest.raises(ValueError, match=f"config.json in 'x' lacks '{name}' of its run: restore it from a copy"):
        recorded_config({**WRITTEN, "run": request}, "x")
    assert recorded_config({"run": WRITTEN["run"]}, "x").checkpoints.keep_checkpoints == 3  # what may change may be missing


def test_hyperparameters_are_kept_as_the_agent_will_have_them(agent: Agent) -> None:
    """Rounded to f32, so that a config that was read back equals the one that was recorded."""
    config = RunConfig.of({"total_steps": 64, "seeds": 2, "hyperparams": {"gamma": [0.9, 0.8], "clip_eps": 0.1}}).for_agent(agent)
    assert config == recorded_config(sections(config), "run").for_agent(agent)
    arrays = config.members.hyperparam_arrays()
    assert arrays is not None and {name: (x.shape, str(x.dtype)) for name, x in arrays.items()} == {
        "gamma": ((2,), "float32"),
        "clip_eps": ((), "float32"),
    }
