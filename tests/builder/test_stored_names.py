"""Names stored in run folders and checkpoints. Moving or renaming one makes users' existing runs unreadable."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxrl.algorithms.presets import PRESETS
from jaxrl.builder.spec import describe
from jaxrl.builder.trusted_imports import import_object, import_part
from jaxrl.intrinsic import rnd
from jaxrl.settings.loadable import KINDS, MODULES, components
from tests.helpers.agents import every_algorithm, small
from tests.helpers.fresh_python import in_fresh_python
from tests.helpers.paths import ROOT

BUILDERS = [
    f"jaxrl.algorithms.{name}:make_{name}"
    for name in (
        "a2c",
        "alphazero",
        "awr",
        "bc",
        "crossq",
        "dagger",
        "ddpg",
        "dqn",
        "dt",
        "es",
        "impala",
        "iql",
        "mpc",
        "mpo",
        "muzero",
        "ppo",
        "pqn",
        "qdagger",
        "r2d2",
        "reinforce",
        "sac",
        "td3",
        "vmpo",
    )
]
COMPONENTS = {
    "intrinsic": ["jaxrl.intrinsic:rnd"],
    "model": [
        "jaxrl.models.cores:recurrent",
        "jaxrl.models:action_value",
        "jaxrl.models:actor_critic",
        "jaxrl.models:deterministic_policy",
        "jaxrl.models:dynamics_network",
        "jaxrl.models:from_linen",
        "jaxrl.models:from_nnx",
        "jaxrl.models:greedy_policy",
        "jaxrl.models:latent_dynamics",
        "jaxrl.models:latent_prediction",
        "jaxrl.models:representation",
        "jaxrl.models:per_agent",
        "jaxrl.models:policy_network",
        "jaxrl.models:q_network",
        "jaxrl.models:value_network",
    ],
    "optimizer": [
        "jaxrl.optimize:adam",
        "jaxrl.optimize:clipped_adam",
        "jaxrl.optimize:clipped_rmsprop",
        "jaxrl.optimize:sgd",
    ],
    "replay": [
        "jaxrl.replay.frames:make_frame_replay",
        "jaxrl.replay.prioritised:make_prioritised_replay",
        "jaxrl.replay.sequence:make_sequence_replay",
        "jaxrl.replay.uniform:uniform_replay",
    ],
}
"""Builder keyword -> names that a folder may store there. Arguments of these, and of custom parts, may be one of ``VALUES``."""
VALUES = [
    "jaxrl.distributions:Categorical",
    "jaxrl.distributions:MultiCategorical",
    "jaxrl.distributions:Normal",
    "jaxrl.distributions:TanhNormal",
    "jaxrl.models.encoders:MLP",
    "jaxrl.models.heads:ActorCriticOutput",
    "jaxrl.models.heads:PolicyHead",
    "jaxrl.models.images:ImpalaCNN",
    "jaxrl.models.images:MinAtarCNN",
    "jaxrl.models.images:NatureCNN",
    "jaxrl.models.initialisers:OrthogonalKernel",
    "jaxrl.models.values:QuantileOutput",
    "jaxrl.models:BatchRenorm",
    "jaxrl.models:board_convolution",
    "jaxrl.models:dense",
    "jaxrl.models:drawn_at_once",
    "jaxrl.models:encode_space",
    "jaxrl.models:orthogonal",
    "jaxrl.models:polar",
    "jaxrl.models:split_mask",
    "jaxrl.replay.frames:frame_replay",
    "jaxrl.replay.hindsight:hindsight_replay",
    "jaxrl.replay.prioritised:prioritised_replay",
    "jaxrl.replay.sequence:sequence_replay",
]

STATES = Path(__file__).parent / "stored_names.json"
"""Algorithm -> names of a state's leaves in a checkpoint. ``python -m tests.builder.test_stored_names`` adds new leaves."""


@pytest.mark.parametrize("path", [*BUILDERS, *VALUES, *(path for paths in COMPONENTS.values() for path in paths)])
def test_a_name_leads_to_what_it_names(path: str) -> None:
    role = "builder" if ":make_" in path else "part"
    assert describe(import_object(path), role) == {"import": path}


@pytest.mark.parametrize(("keyword", "path"), [(keyword, path) for keyword, paths in COMPONENTS.items() for path in paths])
def test_components_of_a_folder_are_trusted(keyword: str, path: str) -> None:
    assert import_part(path, keyword, kind=KINDS[keyword]) is import_object(path)


def test_the_table_has_exactly_the_stored_names() -> None:
    listed = {path: keyword for keyword, paths in COMPONENTS.items() for path in paths} | dict.fromkeys(VALUES, "value")
    assert components() == listed


def test_the_module_of_a_stored_name_fills_the_table() -> None:
    """Also in a process that has imported nothing else of jaxrl."""
    paths = [*VALUES, *(path for paths in COMPONENTS.values() for path in paths)]
    code = "from jaxrl.settings.loadable import kind_of\nalone = not {'jax', 'flax'} & set(sys.modules)\n"
    found = in_fresh_python(f"{code}result = [alone, [path for path in {paths!r} if kind_of(path) is None]]")
    assert found == [True, []] and {path.partition(":")[0] for path in paths} == set(MODULES)


def test_results_name_builders_and_components_that_are_listed() -> None:
    """Names of every measured run, and the arguments of every preset's network."""
    folder, named = ROOT / "benchmarks" / "results", set()

    def collect(data: Any) -> None:
        if isinstance(data, dict):
            named.update({data[key] for key in ("builder", "import") if isinstance(data.get(key), str)})
        for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
            collect(value)

    for path in folder.rglob("*.json"):
        collect(json.loads(path.read_text()))
    listed = {*BUILDERS, *(path for paths in COMPONENTS.values() for path in paths)}
    ours = {name for name in named if name.startswith("jaxrl.")}
    assert len(ours) > 5 and ours <= listed
    assert {f"jaxrl.algorithms.{preset.algorithm}:make_{preset.algorithm}" for preset in PRESETS.values()} <= listed


def names_of_leaves(agent: Any) -> list[str]:
    state = jax.eval_shape(agent.init, jax.eval_shape(lambda: jax.random.key(0)))
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(state)]


AGENTS = {
    "ppo with RND": partial(small, "ppo", "CartPole-v1", intrinsic=partial(rnd, hidden_sizes=(8,), embedding_size=4)),
    "ppo with a constraint": partial(small, "ppo", "jaxrl:Hazards", constraint="lagrangian"),
}


def stored() -> dict[str, list[str]]:
    return dict(json.loads(STATES.read_text()))


@every_algorithm
def test_leaves_of_a_state_keep_their_names(algorithm: str) -> None:
    assert names_of_leaves(small(algorithm, "CartPole-v1")) == stored()[algorithm]


@pytest.mark.parametrize("name", AGENTS)
def test_leaves_of_components_keep_their_names(name: str) -> None:
    assert names_of_leaves(AGENTS[name]()) == stored()[name]


if __name__ == "__main__":
    from jaxrl.registry import ALGORITHMS

    found = {name: names_of_leaves(small(name, "CartPole-v1")) for name in ALGORITHMS}
    found |= {name: names_of_leaves(make()) for name, make in AGENTS.items()}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(leaves)}" for name, leaves in found.items())
    STATES.write_text(f"{{\n{lines}\n}}\n")
