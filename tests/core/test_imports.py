"""Imports: side effects of importing jaxrl, and the allowed directions of imports."""

from __future__ import annotations

import ast
import graphlib
import itertools
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import jaxrl
from jaxrl.algorithms import ALGORITHMS
from jaxrl.runtime.system.cores import usable_cores
from jaxrl.runtime.system.devices import shard_count
from tests.helpers.breaks import BREAKS
from tests.helpers.fresh_python import in_fresh_python
from tests.helpers.paths import PACKAGE, ROOT

HEAVY = ("flax", "orbax", "envpool", "gymnax", "optax", "matplotlib", "jax", "numpy", "gymnasium", "rich", "tyro")
SHELL = ("jaxrl", "jaxrl.__main__", "jaxrl.remote")
"""The package itself, whose table of names imports on first use, the command line, and a part of the runtime."""


def module_name(path: Path) -> str:
    parts = ("jaxrl", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
PURE = {name: path for name, path in MODULES.items() if not name.startswith("jaxrl.runtime") and name not in SHELL}


@cache
def imported_by(name: str, path: Path) -> frozenset[str]:
    """Return all modules that a file imports: at any level, inside functions, under TYPE_CHECKING, and with ``import_module``."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            names = {f"{source}.{alias.name}" for alias in node.names}
            found |= names if names <= set(MODULES) else names | {source}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {text for part in node.args[:1] if isinstance(text := getattr(part, "value", None), str)}
    return frozenset(found)


def test_the_list_of_modules_is_whole() -> None:
    assert {"jaxrl.types", "jaxrl.algorithms.ppo", "jaxrl.replay", "jaxrl.replay.uniform", "jaxrl.envs.backends.envpool"} <= set(
        PURE
    )
    assert "jaxrl.runtime.run" in MODULES and len(MODULES) > 30
    assert imported_by("jaxrl.rollout.collect", PURE["jaxrl.rollout.collect"]) >= {
        "jax",
        "jaxrl.types",
        "jaxrl.types.Env",
        "jaxrl.metrics",
    }


@pytest.mark.parametrize("name", PURE)
def test_no_pure_module_imports_the_runtime(name: str) -> None:
    assert not {target for target in imported_by(name, PURE[name]) if target.startswith("jaxrl.runtime")}


FLOORS = (
    ("interpreter", "types", "version"),
    ("settings", "xla"),
    ("registry", "spaces"),
    ("distributions", "evolution", "exploration", "metrics", "returns", "rollout"),
    ("models", "optimize", "replay"),
    ("agent", "envs", "intrinsic"),
    ("builder",),
    ("agents", "algorithms", "options", "parallel", "pbt", "training"),
)
"""Layers.

Each imports its layer and those above it in this list. The runtime is above all of them, and the package above that.
"""


@pytest.mark.parametrize("name", PURE)
def test_arrows_point_down_only(name: str) -> None:
    rank = {room: i for i, floor in enumerate(FLOORS) for room in floor}
    targets = imported_by(name, PURE[name])
    assert "jaxrl" not in targets  # the package itself, which is above all layers
    rooms = {target.split(".")[1] for target in targets if target.startswith("jaxrl.")}
    above = {room for room in rooms if rank[room] > rank[name.split(".")[1]]}
    assert not above
    if name.startswith("jaxrl.types"):
        assert rooms <= {"types"}


ROOMS = (
    "system",
    "remote",
    "evolution",
    "logs",
    "distributed",
    "checkpoint",
    "plots",
    "console",
    "samplers",
    "trainers",
    "actors",
    "evaluation",
    "arena",
    "datasets",
    "training_loop",
    "run",
    "doctor",
    "search",
    "status",
    "launcher",
    "cli",
)
"""Packages of the runtime. Each imports itself and those before it in this list."""


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("jaxrl.runtime.")])
def test_rooms_of_the_runtime_look_down_only(name: str) -> None:
    rooms = {target.split(".")[2] for target in imported_by(name, MODULES[name]) if target.startswith("jaxrl.runtime.")}
    above = {room for room in rooms if ROOMS.index(room) > ROOMS.index(name.split(".")[2])}
    assert not above


SPEED = {
    "cache_blocking": {
        "jaxrl.optimize.gradients",
        "jaxrl.rollout.outputs",
        "jaxrl.runtime.logs.provenance",
        "jaxrl.runtime.training_loop.session",
    },
    "copies": {"jaxrl.models.values", "jaxrl.rollout.outputs"},
    "ordered_collectives": {"jaxrl.agent", "jaxrl.runtime.actors.gradients"},
    "packed_parameters": {"jaxrl.optimize.descent"},
    "packed_scan": {"jaxrl.rollout.collect"},
}
"""Module of ``jaxrl.xla`` -> the modules that use it. Whoever removes one has this much to change."""


@pytest.mark.parametrize("name", SPEED)
def test_what_is_for_speed_is_used_in_few_places(name: str) -> None:
    room, outside = f"jaxrl.xla.{name}", {n: p for n, p in MODULES.items() if not n.startswith("jaxrl.xla")}
    assert {n for n, p in outside.items() if any(f"{x}.".startswith(f"{room}.") for x in imported_by(n, p))} == SPEED[name]


def test_no_algorithm_or_example_uses_what_is_for_speed() -> None:
    algorithms = {name: path for name, path in MODULES.items() if name.startswith("jaxrl.algorithms")}
    files = algorithms | {f"examples.{path.stem}": path for path in (ROOT / "examples").glob("*.py")}
    assert len(files) > 30
    assert not {name for name, path in files.items() if any(x.startswith("jaxrl.xla") for x in imported_by(name, path))}


@pytest.mark.parametrize("name", ["first_algorithm", "custom_algorithm"])
def test_a_first_algorithm_needs_few_names(name: str) -> None:
    tree = ast.parse((ROOT / f"examples/{name}.py").read_text())
    froms = [x for x in ast.walk(tree) if isinstance(x, ast.ImportFrom) and (x.module or "").split(".")[0] == "jaxrl"]
    assert len([alias for node in froms for alias in node.names]) <= 10 and len({node.module for node in froms}) <= 5


def test_a_folder_is_seen_at_a_glance() -> None:
    of_algorithms = {entry.module for entry in ALGORITHMS.values()}  # one file for each, which the registry lists
    counts = Counter(path.parent for name, path in MODULES.items() if name not in of_algorithms)
    assert not {folder.name: number for folder, number in counts.items() if number > 16}  # with its __init__.py
    rooms = {name.split(".")[1] for name in MODULES if "." in name}
    assert len(rooms) <= 29


def test_an_algorithm_is_read_in_one_sitting() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items() if name.startswith("jaxrl.algorithms")}
    assert len(lengths) > 60 and not {name: number for name, number in lengths.items() if number > 250}


def test_no_circles() -> None:
    """Any module can be imported first, also in the runtime. Imports inside functions count too."""
    graph = {name: imported_by(name, path) & set(MODULES) for name, path in MODULES.items() if name not in SHELL}
    assert "jaxrl.runtime.training_loop.session" in graph["jaxrl.runtime.run"]
    graphlib.TopologicalSorter(graph).prepare()  # raises a CycleError that names the cycle
    benchmarks = {f"benchmarks.{path.stem}": path for path in (ROOT / "benchmarks").glob("*.py")}
    graphlib.TopologicalSorter({name: imported_by(name, path) & set(benchmarks) for name, path in benchmarks.items()}).prepare()


def test_no_test_imports_another() -> None:
    """Tests share code only through ``tests/helpers``, so that each test file can be read, moved and deleted separately."""
    tests = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "tests").rglob("test_*.py")}
    assert len(tests) > 100
    assert not {name: found for name, path in tests.items() if (found := imported_by(name, path) & set(tests) - {name})}


def test_deliberate_mistakes_can_still_be_made() -> None:
    """``tests.helpers.breaks`` names text that occurs once in the package, and test files that exist."""
    assert len(BREAKS) >= 30
    for mistake in BREAKS:
        assert (PACKAGE / mistake.file).read_text(encoding="utf-8").count(mistake.old) == 1, mistake
        assert (ROOT / "tests" / f"{mistake.noticed_by}.py").is_file(), mistake


IMPURE = {"time", "datetime", "random", "threading", "multiprocessing", "concurrent", "subprocess", "socket", "logging", "os"}
HOST_ENVIRONMENTS = {name for name in PURE if name.startswith("jaxrl.envs.subprocess.")}
HOST_ENVIRONMENTS |= {"jaxrl.envs.backends.envpool", "jaxrl.envs.backends.gymnasium_vector"}


@pytest.mark.parametrize("name", sorted(set(PURE) - HOST_ENVIRONMENTS))
def test_pure_modules_touch_no_file_clock_thread_or_screen(name: str) -> None:
    assert not {target.split(".")[0] for target in imported_by(name, PURE[name])} & IMPURE
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(PURE[name].read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"print", "open", "input", "exec", "eval"}


@pytest.mark.parametrize("folder", ["jaxrl", "benchmarks", "tests", "examples"])
def test_what_jax_does_not_promise_stands_in_one_file(folder: str) -> None:
    """So a new JAX is adapted to in one place, where each interface has an alternative, or an error that names it."""
    private = "(_src|extend|interpreters|core)"
    spelled = re.compile(
        rf"^ *(import|from) jax\.{private}\b|^ *from jax import .*\b{private}\b|\bjax\.{private}\.\w", re.MULTILINE
    )
    found = {path.name for path in (ROOT / folder).rglob("*.py") if spelled.search(path.read_text())}
    here = {"jaxrl": "private_jax.py", "tests": "test_private_jax.py"}
    assert found == ({here[folder]} if folder in here else set())


def test_import_jaxrl_imports_nothing_heavy() -> None:
    loaded = in_fresh_python("import jaxrl\nresult = sorted({name.split('.')[0] for name in sys.modules})")
    assert "jaxrl" in loaded
    assert not set(HEAVY) & set(loaded)


def test_pure_modules_leave_jax_and_the_runtime_alone() -> None:
    """After importing all of them no backend is started, no setting or environment variable is changed, and the runtime is not
    loaded."""
    result = in_fresh_python(
        f"""
import importlib, os, signal, threading, jax
import chex, flax.linen, gymnasium.spaces, optax  # what these do among themselves is theirs
def world():
    settings = {{k: repr(v) for k, v in jax.config.values.items()}}
    return settings, dict(os.environ), threading.active_count(), signal.getsignal(signal.SIGINT)
before = world()
import jaxrl
for name in {sorted(PURE)!r}:
    importlib.import_module(name)
after = world()
from jaxrl.xla.private_jax import backends_started
result = {{
    "settings": len(before[0]),
    "changed": [k for k in after[0] if after[0][k] != before[0].get(k)],
    "rest": before[1:] == after[1:],
    "backends": backends_started(),
    "loaded": sorted(sys.modules),
}}
"""
    )
    assert result["settings"] > 50 and result["changed"] == [] and result["rest"]
    assert result["backends"] is False
    assert not [name for name in result["loaded"] if name.startswith("jaxrl.runtime")]
    assert not {"orbax", "envpool", "gymnax", "matplotlib"} & {name.split(".")[0] for name in result["loaded"]}
    assert "jaxrl.algorithms.dqn" in result["loaded"]


NEED_VALUES = {"gymnax:FourRooms-misc", "gymnax:MetaMaze-misc"}
"""Environments whose constructors read values of JAX arrays, so a backend must run."""


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_building_an_agent_starts_no_backend(every: int) -> None:
    """So ``run`` can still request one device per core: for gymnax's environments (a fifth, or all), envpool's, and a user's."""
    code = f"""
import functools
from jaxrl.xla.private_jax import backends_started
import jax, jaxrl, jaxrl.models, optax
ids = [env for env in jaxrl.list_envs("gymnax") if env not in {NEED_VALUES!r}]
guilty = []
others = ["CartPole-v1?gravity=5.0", "DeepSea-bsuite?size=5", "envpool:CartPole-v1", "tests.helpers.probes:truncation"]
for env in ids[::{every}] + others:
    before = dict(jax.config.values)
    agent = jaxrl.make_ppo(env, num_envs=2, rollout_length=4, num_minibatches=1)
    if backends_started() or before != jax.config.values:
        guilty.append(env)
jaxrl.make_train(jaxrl.make_dqn("CartPole-v1"), total_steps=200_000)
parts = dict(
    model=functools.partial(jaxrl.models.actor_critic, core="gru"),
    optimizer=lambda hp: optax.adamw(hp.learning_rate),
    schedules={{"gamma": lambda iteration: 1.0}},
    extra_losses=lambda params, batch: (batch.value.mean(), {{}}),
)
for axis_name in (None, "d"):
    jaxrl.make_ppo("CartPole-v1", normalize_observations=True, normalize_rewards=True, axis_name=axis_name, **parts)
guilty += ["parts"] * backends_started()
from gymnax.environments.misc import frozen_lake
result = [len(ids), guilty, frozen_lake._DIRECTIONS[jax.numpy.array(2)].tolist(), backends_started()]
"""
    number, guilty, direction, after = in_fresh_python(code)
    assert number >= 20 and guilty == []
    assert direction == [0, 1] and after  # gymnax itself works as before; the attribute is really used


@pytest.mark.slow
def test_a_run_after_building_uses_all_cores() -> None:
    cores = usable_cores()
    code = """
import contextlib, io, jaxrl
from tests.helpers.agents import small_ppo
agent = small_ppo("CartPole-v1", num_epochs=1)
with contextlib.redirect_stdout(io.StringIO()) as shown:
    jaxrl.run(agent, 32, seeds=4, eval_every=0)
result = shown.getvalue()
"""
    shown = in_fresh_python(code)
    assert ("4 seeds on " in shown) == (cores > 1) and f"on {shard_count(4, cores)} devices" in shown + "on 1 devices"
    assert "in use before" not in shown


def test_public_names() -> None:
    homes = jaxrl._homes()
    assert sorted(homes) == sorted(jaxrl.__all__) and set(homes) > set(jaxrl._HOMES)
    for name in jaxrl.__all__:
        public = getattr(jaxrl, name)
        assert getattr(sys.modules[homes[name]], name) is public
        assert name in dir(jaxrl)
    with pytest.raises(AttributeError, match=r"no attribute 'make_sarsa'.*make_ppo"):
        _ = jaxrl.make_sarsa


def test_building_blocks_are_there_without_an_import_of_their_own() -> None:
    found = in_fresh_python("import jaxrl\nresult = [getattr(jaxrl, name).__name__ for name in jaxrl._ROOMS]")
    assert found == [f"jaxrl.{name}" for name in jaxrl._ROOMS]
    assert callable(jaxrl.parallel.initialize)


def test_type_checkers_see_the_same_names() -> None:
    """The imports under TYPE_CHECKING, which are never executed, agree with the table."""
    seen = {}
    hidden = [node for node in ast.parse((PACKAGE / "__init__.py").read_text()).body if isinstance(node, ast.If)]
    for node in ast.walk(ast.Module(hidden, [])):
        if isinstance(node, ast.ImportFrom) and node.module:
            seen |= dict.fromkeys((alias.name for alias in node.names), node.module)
    assert seen == jaxrl._homes()


# ------------------------------------------------------------------------------------------------------------------------ sizes


def length(function: ast.FunctionDef) -> int:
    """Return the number of lines of its body without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_a_function_fits_a_screen() -> None:
    trees = [ast.parse(path.read_text()) for path in MODULES.values()]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert not [function.name for function in functions if length(function) >= 60]


def code_lines(algorithm: str) -> list[str]:
    return (PACKAGE / f"algorithms/{algorithm}.py").read_text().splitlines()


@pytest.mark.parametrize(
    "algorithm, lines",
    [
        ("ppo", 228),
        ("dqn", 195),
        ("pqn", 186),
        ("r2d2", 250),
        ("a2c", 70),
        ("impala", 75),
        ("reinforce", 75),
        ("sac", 135),
        ("crossq", 125),
        ("mpo", 215),
        ("vmpo", 212),
        ("iql", 200),
        ("awr", 138),
        ("bc", 75),
        ("dt", 175),
        ("td3", 70),
        ("ddpg", 52),
    ],
)
def test_an_algorithm_reads_in_a_few_screens(algorithm: str, lines: int) -> None:
    """Not counting its imports."""
    tree = ast.parse("\n".join(code_lines(algorithm)))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert len(code_lines(algorithm)) - sum((node.end_lineno or 0) - node.lineno + 1 for node in imports) <= lines


def statements(algorithm: str) -> Counter[str]:
    """Count the lines of an algorithm's file as formatted by ``ast.unparse``, with a signature in one line.

    Imports, docstrings, declarations of fields and the builder's decorator do not count.
    """

    class Bare(ast.NodeTransformer):
        def visit_Import(self, node: Any) -> None: ...

        visit_ImportFrom = visit_Import

        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign | None:
            return None if isinstance(node.target, ast.Name) else node

        def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
            return None if isinstance(node.value, ast.Constant) else node

    bare = Bare().visit(ast.parse("\n".join(code_lines(algorithm))))
    lines = [line.strip() for line in ast.unparse(bare).splitlines() if line.strip()]
    return Counter(line for line in lines if not line.startswith("@with_keywords_of"))


@pytest.mark.parametrize("pair", [*itertools.combinations(ALGORITHMS, 2)], ids="-".join)
def test_what_two_algorithms_share_has_one_home(pair: tuple[str, str]) -> None:
    both = statements(pair[0]) & statements(pair[1])
    assert both.total() < 12, both
