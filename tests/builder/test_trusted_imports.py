"""Run folders, checkpoints and sweep files are data: no contents can make jaxrl import or call anything outside it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms import ALGORITHMS
from jaxrl.builder.spec import build_again, check_env_id, modules_outside, unimportable_parts
from jaxrl.builder.trusted_imports import Untrusted, check_trust, import_part
from jaxrl.runtime.checkpoint.restore import read_info
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.evaluation.evaluate_runs import EvaluationSettings, evaluate_run
from jaxrl.runtime.logs.provenance import commit
from jaxrl.runtime.logs.run_folder import RunFolder
from jaxrl.runtime.training_loop.plan import make_plan
from jaxrl.runtime.training_loop.run_config import RunConfig
from jaxrl.runtime.training_loop.run_files import RunFiles
from jaxrl.settings.loadable import KINDS, MODULES, component
from tests.helpers.agents import SMALL_ACTOR_CRITIC, cartpole, gymnax_id, required, small_ppo, tiny

SETTINGS: dict[str, Any] = {"eval_episodes": 2, "tensorboard": False}

Attack = Callable[[Path], dict[str, Any]]
"""Path of a file that must not be created -> fields of the agent's spec."""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a file that attacks would create. ``trap`` is an importable module that creates it on import."""
    mark = tmp_path / "mark"
    (tmp_path / "trap.py").write_text(f"open({str(mark)!r}, 'w')\n\ndef net(*spaces): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trap", raising=False)
    return mark


# ------------------------------------------------------------------------------------------------------------------- attacks


def call(path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"partial": {"import": path}, "args": list(args), "kwargs": kwargs}


def part(name: str, make: Callable[[Path], Any]) -> Attack:
    return lambda mark: {"parts": {name: make(mark)}}


def env(make: Callable[[Path], Any]) -> Attack:
    return lambda mark: {"env": make(mark)}


def touch(mark: Path) -> list[str]:
    return ["touch", str(mark)]


def statement(mark: Path) -> str:
    return f"open({str(mark)!r}, 'w')"


TRAP = {"import": "trap:net"}
NO_MODEL = ("unroll", "apply", "init")

ATTACKS: dict[str, Attack] = {
    "builder": lambda mark: {"builder": {"import": "subprocess:run"}, "settings": {"args": touch(mark)}, "parts": {}, "env": {}},
    "builder of jaxrl": lambda mark: {
        "builder": {"import": "jaxrl.runtime.search.sweep:run_job"},
        "settings": {"command": touch(mark)},
    },
    "builder from a room": lambda mark: {"builder": {"import": "jaxrl.models:actor_critic"}},
    "builder, partial": lambda mark: {"builder": call("subprocess:run", touch(mark))},
    "builder, a model": lambda mark: {"builder": {"model": dict.fromkeys(jaxrl.Model._fields, TRAP)}},
    "env": env(lambda mark: f"os:system?command={quote(' '.join(touch(mark)))}"),
    "env in a submodule": env(lambda mark: f"trap:net?x={mark}"),
    "env of jaxrl": env(lambda mark: f"jaxrl.runtime.search.sweep:run_job?command={touch(mark)}"),
    "env that imports": env(lambda mark: "jaxrl.settings.packages:import_package?package=trap&needed_by=x"),
    "env with a program": env(lambda mark: f"envpool:D1Basic-v1?vzd_path={mark.with_name('program')}"),
    "env with arguments": env(lambda mark: f"envpool:D1Basic-v1?game_args=+logfile {mark}"),
    "env of gymnasium's": env(lambda mark: "gymnasium:trap:Net-v0"),
    "env of gymnasium's, of another module": env(lambda mark: f"gymnasium:subprocess:run?args={touch(mark)}"),
    "env, import": env(lambda mark: TRAP),
    "env, partial": env(lambda mark: call("os:system", f"touch {mark}")),
    "model": part("model", lambda mark: TRAP),
    "model, partial": part("model", lambda mark: call("cProfile:run", statement(mark))),
    "model, nested": part("model", lambda mark: {"partial": call("cProfile:run", statement(mark)), "args": [], "kwargs": {}}),
    "model, argument": part("model", lambda mark: call("jaxrl.models:actor_critic", hidden_sizes=[TRAP])),
    "model, function": part(
        "model", lambda mark: {"model": dict.fromkeys(NO_MODEL, TRAP) | {"initial_carry": call("os:system", f"touch {mark}")}}
    ),
    "model, import_object": part("model", lambda mark: call("jaxrl.builder.trusted_imports:import_object", "trap:net")),
    "model, make_env": part("model", lambda mark: call("jaxrl.envs:make_env", "trap:net")),
    "model, build": part("model", lambda mark: call("jaxrl.builder.spec:build", {"builder": TRAP})),
    "model, a builder": part("model", lambda mark: call("jaxrl.algorithms.ppo:make_ppo", "trap:net")),
    "model through a module": part("model", lambda mark: call("jaxrl.runtime.cli.main:os.system", f"touch {mark}")),
    "model through a room": part("model", lambda mark: call("jaxrl.models:jax.numpy.load", str(mark))),
    "model through globals": part("model", lambda mark: call("jaxrl.models:actor_critic.__globals__.get", "jax")),
    "model through a class": part("model", lambda mark: call("jaxrl.models:MLP.__init__.__globals__.get", "jax")),
    "model of Python's": part("model", lambda mark: call("builtins:exec", statement(mark))),
    "model that writes": part("model", lambda mark: call("jaxrl.runtime.system.disk:write_atomically", str(mark))),
    "model, no path": part("model", lambda mark: {"import": ["trap", "net"]}),
    "model, no module": part("model", lambda mark: {"import": "trap"}),
    "model, of __main__": part("model", lambda mark: {"import": "__main__:net"}),
    "optimizer": part("optimizer", lambda mark: call("os:system", f"touch {mark}")),
    "replay": part("replay", lambda mark: call("cProfile:run", statement(mark))),
    "schedules": part("schedules", lambda mark: {"learning_rate": call("os:system", f"touch {mark}")}),
    "extra_losses": part("extra_losses", lambda mark: [TRAP]),
    "a setting": lambda mark: {"settings": {"num_envs": TRAP}},
    "a part among the settings": lambda mark: {"settings": {"evil": call("os:system", f"touch {mark}")}},
}


def altered(spec: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return the spec with the attack in it. Settings and parts are merged, unless they are for another builder."""
    whole = ("settings", "parts") if "builder" not in change else ()
    merged = {name: {**spec[name], **change[name]} for name in whole if name in change}
    return {**spec, **change, **merged}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_spec_runs_nothing(name: str, mark: Path) -> None:
    spec = json.loads(json.dumps(altered(cartpole("ppo").spec, ATTACKS[name](mark))))
    with pytest.raises(ValueError):
        jaxrl.build(spec)
    assert not mark.exists() and "trap" not in sys.modules


@pytest.mark.parametrize("name", ATTACKS)
def test_a_run_folder_runs_nothing(name: str, mark: Path, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For readers of the whole spec, and for load_policy, which uses the run's spaces instead of its environment."""
    folder = mark.with_name("run")
    shutil.copytree(trained, folder)
    config = json.loads((folder / "config.json").read_text())
    config["agent"] = altered(config["agent"], ATTACKS[name](mark))
    (folder / "config.json").write_text(json.dumps(config))
    if name.startswith("env"):  # a policy does not need an environment
        assert jaxrl.load_policy(folder, seed=4).seed == 4
    else:
        with pytest.raises(ValueError):
            jaxrl.load_policy(folder)
    with pytest.raises(ValueError):
        jaxrl.resume(folder, quiet=True)
    if not name.startswith("env"):  # those take a second per attack
        with pytest.raises(ValueError):
            evaluate_run(folder, EvaluationSettings(episodes=2))
    assert main(["train", "--resume", str(folder), "--quiet"]) == 2
    if name in ("builder", "env", "model, partial"):
        assert main(["eval", str(folder), "--episodes", "2"]) == 2
        assert main(["record", str(folder)]) == 2
        capsys.readouterr()
        assert main(["plot", str(folder), "--out", str(mark.with_name("curves.png"))]) == 0
    assert not mark.exists() and "trap" not in sys.modules


def test_a_config_that_lacks_something_is_one_line(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(trained, tmp_path / "run")
    folder, whole = str(tmp_path / "run"), (trained / "config.json").read_text()

    def alter(change: Callable[[dict[str, Any]], Any]) -> None:
        config = json.loads(whole)
        change(config)
        (tmp_path / "run" / "config.json").write_text(json.dumps(config))

    alter(lambda config: config["run"].pop("seeds"))
    for command in (["eval", folder], ["train", "--resume", folder], ["plot", folder]):
        assert main(command) == 2
        assert "is invalid: it lacks 'run.seeds'" in capsys.readouterr().err
    alter(lambda config: config["run"].pop("on_nan"))
    assert main(["train", "--resume", folder]) == 2
    assert "lacks 'on_nan' of its run: restore it from a copy" in " ".join(capsys.readouterr().err.split())
    alter(lambda config: config["agent"]["parts"].update(model={"partial": {"import": "jaxrl.models:actor_critic"}}))
    assert main(["plot", folder, "--out", str(tmp_path / "curves.png")]) == 0
    assert main(["eval", folder]) == 2
    assert "a partial is a function, a list of args" in capsys.readouterr().err


def test_the_refusal_is_one_line_with_the_module_and_the_flag(mark: Path) -> None:
    vizdoom = "envpool:D1Basic-v1?vzd_path='/x'"
    with pytest.raises(Untrusted, match=r"^env is .*vzd_path='/x'.*--trust envpool"):
        check_env_id(vizdoom)
    assert check_env_id(vizdoom, "envpool") == vizdoom and check_env_id("envpool:D1Basic-v1?frame_skip=2")
    for change, where in (
        ({"builder": {"import": "trap:net"}}, "builder"),
        ({"env": "trap:net"}, "env"),
        ({"parts": {"model": TRAP}}, "model"),
    ):
        with pytest.raises(Untrusted, match=rf"^{where} is 'trap:net'.*code of 'trap'.*trust=\('trap',\).*--trust trap") as error:
            jaxrl.build(altered(cartpole("ppo").spec, change))
        assert "\n" not in str(error.value)


def test_a_checkpoint_runs_nothing(mark: Path, tmp_path: Path) -> None:
    spec = altered(cartpole("ppo").spec, {"env": "trap:net"})
    jaxrl.save(tmp_path / "saved", {"x": np.zeros(3)}, step=1, spec=spec)
    with pytest.raises(Untrusted, match="--trust trap"):
        jaxrl.build(read_info(tmp_path / "saved").spec)
    assert not mark.exists()


@pytest.mark.parametrize("env_id", ["trap:net", "jaxrl.runtime.search.sweep:run_job?command=['true']"])
def test_a_sweep_file_runs_nothing(env_id: str, mark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "grid.toml", tmp_path / "out"
    text = f'algorithm = "ppo"\nenv = "{env_id}"\ntotal_steps = 8\n[grid]\nlearning_rate = [0.1]\n'
    file.write_text(text)
    assert main(["sweep", str(file), "--out", str(out)]) == 2
    assert capsys.readouterr().err.startswith(f"jaxrl: env is '{env_id.partition('?')[0]}'")
    assert not mark.exists() and not out.exists()
    file.write_text(text + 'optimizer = ["trap:net"]\n')
    assert main(["sweep", str(file), "--out", str(out)]) == 2
    assert not mark.exists()


def test_a_sweep_that_somebody_began_runs_nothing(mark: Path, tmp_path: Path) -> None:
    from jaxrl.runtime.cli import sweep_job

    sweep = {"algorithm": "ppo", "env": "trap:net", "total_steps": 8, "settings": {}, "grid": {"learning_rate": [0.1]}}
    (tmp_path / "sweep.json").write_text(json.dumps({"sweep": sweep, "done": []}))
    with pytest.raises(Untrusted, match="--trust trap"):
        sweep_job.main(str(tmp_path), "all")
    (tmp_path / "sweep.json").write_text(json.dumps({"sweep": {**sweep, "algorithm": "subprocess"}, "done": []}))
    with pytest.raises((KeyError, ValueError)):
        sweep_job.main(str(tmp_path), "all")
    assert not mark.exists()


def test_the_commit_starts_no_program_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program, file = tmp_path / "program", tmp_path / "file"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'mark'}\ncat\n")
    program.chmod(0o755)
    file.write_text("1")
    git = partial(subprocess.run, check=True, capture_output=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "file"], [*author, "commit", "-qm", "first"]):
        git(["git", *command])
    git(["git", "config", "core.fsmonitor", str(program)])
    git(["git", "config", "core.hooksPath", str(tmp_path)])
    shutil.copy(program, tmp_path / "post-index-change")
    file.write_text("2")
    assert (commit() or "").endswith("+changes")
    (tmp_path / ".gitattributes").write_text("* filter=mine\n")
    git(["git", "config", "filter.mine.clean", str(program)])
    file.write_text("3")
    assert len(commit() or "") == 40  # changes are not checked
    assert not (tmp_path / "mark").exists()


# ----------------------------------------------------------------------------------------------------------------------- trust


NUMBERS = itertools.count()

NETS = """
import os
from functools import partial
from os import getcwd
from jaxrl import make_env
from jaxrl.models import actor_critic

def net(*spaces):
    return actor_critic(*spaces, hidden_sizes=(8,))

class Nets:
    @staticmethod
    def small(*spaces):
        return net(*spaces)

def cart():
    return make_env("CartPole-v1")

heavy_cart = partial(make_env, "CartPole-v1", gravity=20.0)
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of a package that this process has not imported."""
    package = f"foreign{next(NUMBERS)}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / "nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{package}.nets"


@pytest.mark.parametrize("trust", ["PACKAGE", ("PACKAGE",), ["os", "PACKAGE.nets"]])
def test_what_is_trusted_is_imported(nets: str, trust: Any) -> None:
    package = nets.partition(".")[0]
    trust = json.loads(json.dumps(trust).replace("PACKAGE", package))
    for name in ("net", "Nets.small"):
        spec = altered(cartpole("ppo").spec, {"parts": {"model": {"import": f"{nets}:{name}"}}})
        with pytest.raises(Untrusted, match=rf"trust=\('{package}',\)"):
            import_part(f"{nets}:{name}", "model", (package[:-1], f"{package}.net", "jaxrl"))
        agent = jaxrl.build(spec, trust=trust)
        assert agent.spec == spec and isinstance(agent, jaxrl.Agent)
        assert jaxrl.build(spec).spec == spec  # from here on this process uses the component


@pytest.mark.parametrize("name", ["os.system", "os", "getcwd", "actor_critic.__globals__", "net.__call__", "Nets.__subclasses__"])
def test_trust_in_a_module_is_none_in_what_it_imports(nets: str, name: str) -> None:
    with pytest.raises(Untrusted):
        import_part(f"{nets}:{name}", "model", (nets,))


def test_nor_in_environments_that_it_imports(nets: str) -> None:
    for name in ("cart", "heavy_cart"):
        spec = altered(cartpole("ppo").spec, {"env": f"{nets}:{name}"})
        assert jaxrl.build(spec, trust=nets).env.name == f"{nets}:{name}"
    for name, home in (("getcwd", f"{os.getcwd.__module__}', which you would"), ("make_env?env_id=CartPole-v1", "jaxrl.envs'$")):
        with pytest.raises(Untrusted, match=f"does not define itself: it comes from '{home}"):
            jaxrl.build(altered(cartpole("ppo").spec, {"env": f"{nets}:{name}"}), trust=nets)


def test_jaxrl_as_a_whole_cannot_be_trusted() -> None:
    for path in (
        "jaxrl.builder.trusted_imports:import_object",
        "jaxrl.envs:make_env",
        "jaxrl.runtime.search.sweep:run_job",
        "jaxrl:build",
    ):
        with pytest.raises(Untrusted, match="not a part that an agent can have"):
            import_part(path, "model", check_trust("jaxrl"))
    with pytest.raises(Untrusted):
        check_env_id("jaxrl.runtime.search.sweep:run_job?command=['true']", trust=("jaxrl",))


REACHING_OUT = ("importlib", "import os", "import sys", "subprocess", "callback", "open(", "load(", "eval(", "exec(")


def test_packages_of_components_hold_nothing_that_reaches_out() -> None:
    """Components may be called with any arguments, so what they call must not have side effects or import by name."""
    for room in {".".join(module.split(".")[:2]) for module in MODULES}:
        home = Path(import_module(room).__file__ or "")
        for file in home.parent.rglob("*.py") if home.name == "__init__.py" else [home]:
            assert not [word for word in REACHING_OUT if re.search(rf"(?<!\w){re.escape(word)}", file.read_text())], file


def test_what_jaxrl_gives_must_be_what_the_keyword_says() -> None:
    ppo = cartpole("ppo").spec
    for keyword, path in (
        ("model", "jaxrl.optimize:clipped_adam"),
        ("optimizer", "jaxrl.models:actor_critic"),
        ("model", "jaxrl.models.encoders:MLP"),
        ("critic", "jaxrl.optimize:clipped_adam"),
        ("replay", "jaxrl.replay.prioritised:prioritised_replay"),
        ("intrinsic", "jaxrl.distributions:Normal"),
    ):
        with pytest.raises(ValueError, match=f"^{keyword} is '{path}', which does not return "):
            jaxrl.build(altered(ppo, {"parts": {keyword: {"import": path}}}))
    with pytest.raises(ValueError, match=r"a Model is the functions init, apply"):
        jaxrl.build(altered(ppo, {"parts": {"model": {"model": {"init": 3}}}}))
    assert jaxrl.build(altered(ppo, {"parts": {"optimizer": {"import": "jaxrl.optimize:clipped_adam"}}}))


UNDECORATED = [
    "jaxrl.distributions:select_actions",
    "jaxrl.intrinsic:Intrinsic",
    "jaxrl.models.control:action_value",  # a component, but not under this name
    "jaxrl.models.cores:gru",
    "jaxrl.models.encoders:MLP.__call__",
    "jaxrl.models.networks:ActorCritic",
    "jaxrl.models.wrap:_model",
    "jaxrl.models:MLP",
    "jaxrl.models:component",
    "jaxrl.models:make_network",
    "jaxrl.optimize:_adam",
    "jaxrl.optimize:elementwise",
    "jaxrl.replay.uniform:make_ring",
    "jaxrl.settings.loadable:component",
]


@pytest.mark.parametrize("path", UNDECORATED)
@pytest.mark.parametrize("kind", [None, "model", "optimizer", "replay"])
def test_what_is_not_a_component_is_refused(path: str, kind: Any) -> None:
    """Also where it returns what a component returns, and as an argument of one."""
    with pytest.raises(Untrusted, match="not a part that an agent can have"):
        import_part(path, "model", kind=kind)
    argument = call("jaxrl.models:actor_critic", hidden_sizes={"import": path})
    with pytest.raises(Untrusted, match="not a part that an agent can have"):
        jaxrl.build(altered(cartpole("ppo").spec, {"parts": {"model": argument}}))


def test_a_trusted_module_passes_on_only_components(nets: str) -> None:
    file = Path(import_module(nets).__file__ or "")
    file.with_name("more.py").write_text(f"from jaxrl.models.cores import lstm_step\n{NETS}")
    more = f"{nets.partition('.')[0]}.more"
    assert import_part(f"{more}:actor_critic", "model", (more,)) is jaxrl.models.actor_critic
    with pytest.raises(Untrusted, match=r"does not define itself: it comes from 'jaxrl\.models\.cores'$"):
        import_part(f"{more}:lstm_step", "model", (more,))


def test_a_component_is_of_a_listed_module_and_kind() -> None:
    with pytest.raises(ValueError, match="cannot be a component of kind 'model'"):
        component("model")(tiny)
    with pytest.raises(ValueError, match="cannot be a component of kind 'network'"):
        component("network")(jaxrl.models.actor_critic)  # type: ignore[arg-type]
    assert {"model", "critic", "dynamics", "prediction", "optimizer", "replay", "intrinsic"} == set(KINDS)


def test_every_builder_of_the_registry_builds_without_trust() -> None:
    for name, entry in ALGORITHMS.items():
        env = gymnax_id(name)
        spec = getattr(jaxrl, entry.builder)(env, **tiny(name).settings, **required(name, env)).spec
        assert spec["builder"] == {"import": f"{entry.module}:{entry.builder}"}
        assert modules_outside(spec) == [] and jaxrl.build(spec).spec == spec


@pytest.mark.parametrize("trust, error", [(3, TypeError), ((3,), TypeError), ("my-package", ValueError), (("",), ValueError)])
def test_trust_is_names(trust: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        jaxrl.build(cartpole("ppo").spec, trust=trust)


def test_a_script_goes_on_with_its_own_parts(nets: str, tmp_path: Path) -> None:
    """Components passed to a builder in this process need no trust. Other objects in the same module do."""
    spec = small_ppo("CartPole-v1", model=import_module(nets).net).spec
    assert jaxrl.build(json.loads(json.dumps(spec))).spec == spec
    assert modules_outside(spec) == [nets]
    with pytest.raises(Untrusted):
        import_part(f"{nets}:Nets.small", "model")


def test_an_environment_object_is_not_looked_for_by_its_name(mark: Path) -> None:
    """A policy is loaded on an environment that has the name of the run's, and no functions."""
    found = jaxrl.make_env("CartPole-v1")._replace(name="trap:net")
    assert "unimportable" in small_ppo(found).spec["env"] and not mark.exists()


# ---------------------------------------------------------------------------------------------------- components without a name


@pytest.mark.slow
def test_parts_of_a_script_are_given_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def net(*spaces: Any) -> Any:
        return SMALL_ACTOR_CRITIC(*spaces)

    out = tmp_path / "run"
    agent = small_ppo("CartPole-v1", model=net)
    states, _ = jaxrl.run(agent, 64, seeds=[4, 2], out=out, **SETTINGS)
    said = capsys.readouterr().out
    assert "no other process can import model=<function" in said and f"jaxrl.load_policy('{out}', model=…)" in said
    for load in (jaxrl.load_policy, partial(jaxrl.resume, quiet=True)):
        with pytest.raises(ValueError, match=r"^model cannot be rebuilt.*pass the part again .*\(model=…\)"):
            load(out)
    again = lambda *spaces: SMALL_ACTOR_CRITIC(*spaces)  # noqa: E731 - defined anew, as in another process
    obs = np.zeros(4, np.float32)
    assert jaxrl.load_policy(out, model=again)(obs) == jaxrl.load_policy(out, model=SMALL_ACTOR_CRITIC)(obs)
    resumed, _ = jaxrl.resume(out, model=SMALL_ACTOR_CRITIC, quiet=True)
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), states.learner.params, resumed.learner.params))


def test_an_environment_of_the_script_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "make_mine", lambda: jaxrl.make_env("CartPole-v1"), raising=False)
    spec = small_ppo("__main__:make_mine").spec
    assert unimportable_parts(spec) == {"env": "__main__:make_mine"} and unimportable_parts(cartpole("ppo").spec) == {}
    assert jaxrl.build(spec).spec == spec  # it is known in this process
    assert unimportable_parts(spec | {"env": "gymnasium:__main__:Mine?size=3"}) == {"env": "gymnasium:__main__:Mine?size=3"}


def test_only_parts_are_given_again() -> None:
    spec = cartpole("ppo").spec
    with pytest.raises(TypeError, match=r"modle=… is not a part.*Did you mean 'model'"):
        build_again(spec, modle=SMALL_ACTOR_CRITIC)
    with pytest.raises(TypeError, match=r"num_envs=… is not a part.*settings are those of the run"):
        build_again(spec, num_envs=8)
    assert build_again(spec, model=SMALL_ACTOR_CRITIC, env="Acrobot-v1").spec == spec


def test_an_agent_of_another_version_learns_no_more() -> None:
    """A setting that its spec lacks would silently get today's default."""
    spec = cartpole("dqn").spec
    older = {**spec, "settings": {name: value for name, value in spec["settings"].items() if name not in ("n_step", "adam_eps")}}
    with pytest.raises(ValueError, match=r"lacks n_step, adam_eps: another version of jaxrl wrote it.* with init_from"):
        build_again(older, to_learn=True)
    assert build_again(older).spec == older and build_again(spec, to_learn=True).spec == spec


def test_a_run_says_how_to_go_on_with_it(tmp_path: Path) -> None:
    tmp_path /= "a b"
    tmp_path.mkdir()
    model = lambda *spaces: SMALL_ACTOR_CRITIC(*spaces)  # noqa: E731
    for agent, command in (
        (cartpole("ppo"), f"jaxrl train --resume '{tmp_path}'"),
        (small_ppo("tests.helpers.probes:action_choice"), f"jaxrl train --resume '{tmp_path}' --trust tests"),
        (small_ppo("CartPole-v1", model=model), f"jaxrl.resume('{tmp_path}', model=…)"),
    ):
        with contextlib.closing(RunFolder(tmp_path)) as folder:
            files = RunFiles(folder, agent, make_plan(agent, RunConfig(64)), jax.devices(), print)
            assert files.resume_command == command
