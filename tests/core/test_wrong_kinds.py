"""Arguments of a wrong kind raise an error of the right type with one short message, and leave nothing behind."""

from __future__ import annotations

import os
import random
import resource
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import parallel
from jaxrl.envs import family_of
from jaxrl.runtime.checkpoint import manifest
from jaxrl.runtime.checkpoint.leaves import LeafSpec
from jaxrl.runtime.checkpoint.manifest import CheckpointError
from jaxrl.runtime.cli.main import main
from jaxrl.types import Agent
from tests.helpers import probes
from tests.helpers.agents import small_ppo
from tests.helpers.fakes import faked
from tests.helpers.hosted import Clock, clock

ALLOWED = (TypeError, ValueError, OSError, ImportError)
MOST = 2_000
"""Largest number of characters in a message."""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda agent: jaxrl.run(agent, 64, out="run", init_which=5), "init_which=5 is unknown"),
        (lambda agent: jaxrl.run(agent, 64, out="run", sampler=3), "sampler 3 must be a string"),
        (lambda agent: jaxrl.run(agent, 64, out="run", sampler=[]), r"sampler \[\] must be a string"),
        (lambda agent: jaxrl.run(agent, 64, out="run", seeds=2**31), "seeds=2147483648 must be at most 1,000,000"),
        (
            lambda agent: jaxrl.run(agent, 64, out="run", eval_episodes=2**31),
            "eval_episodes=2147483648 must be at most 1,000,000",
        ),
        (
            lambda agent: jaxrl.evaluate(agent, None, jax.random.key(0), 2**31),
            "num_episodes=2147483648 must be at most 1,000,000",
        ),
        (lambda agent: jaxrl.list_envs(5), "unknown backend 5"),
        (lambda agent: family_of(5), "an environment id must be a string, not 5"),
        (lambda agent: parallel.shard_seeds(agent, 5), "mesh=5 must be a jax.sharding.Mesh"),
        (lambda agent: parallel.shard_seeds(5), "agent must be"),
        (lambda agent: parallel.data_parallel(agent, []), r"mesh=\[\] must be an integer"),
        (lambda agent: parallel.data_parallel(agent, 0), "mesh=0 must be an integer >= 1"),
        (lambda agent: jaxrl.Scheme(clock="abc"), "scheme.clock='abc' must be one of"),
        (lambda agent: jaxrl.Scheme(num_workers=-1), "scheme.num_workers=-1 must be an integer >= 0"),
        (lambda agent: jaxrl.make_env("-" * 50_000), "has 50,000 characters"),
        (lambda agent: jaxrl.make_env(f"CartPole-v1?gravity={'-' * 50_000}5"), "has 50,021 characters"),
        (lambda agent: jaxrl.make_env(f"CartPole-v1?gravity={'-' * 5_000}5"), "nested too deep|gravity"),
        (lambda agent: jaxrl.make_env("CartPole-v1" + "|time_limit(200)" * 3_000), "3,000 wrappers"),
        (lambda agent: jaxrl.make_env(f"CartPole-v1|time_limit({'(' * 4_000}5{')' * 4_000})"), "is not a wrapper"),
    ],
)
def test_errors_of_the_right_kind(
    call: Callable[[Agent], Any], message: str, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        call(agent)
    assert len(str(caught.value)) < 800 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["run", "new/run"])
@pytest.mark.parametrize("wrong", [{"total_steps": -1}, {"on_nan": "x"}, {"eval_episodes": 0}, {"init_from": "nowhere"}])
def test_a_refused_run_leaves_no_folder(
    out: str, wrong: dict[str, Any], agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    faked(monkeypatch, {})
    with pytest.raises((ValueError, FileNotFoundError)):
        jaxrl.run(agent, **{"total_steps": 64, "out": out, "seeds": 2, "quiet": True, **wrong})
    assert not list(tmp_path.iterdir())


def test_a_refused_run_leaves_a_folder_that_was_there(agent: Agent, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        jaxrl.run(agent, -1, out=tmp_path, quiet=True)
    assert tmp_path.exists() and not list(tmp_path.iterdir())


def test_environments_that_cannot_be_closed_cost_no_result() -> None:
    class Stuck(Clock):
        def close(self) -> None:
            raise ZeroDivisionError("not today")

    agent = small_ppo(clock(Stuck))
    state = agent.init(jax.random.key(0))
    with pytest.warns(UserWarning, match=r"its environments could not be closed \(ZeroDivisionError: not today\)"):
        played = jaxrl.evaluate(agent, state, jax.random.key(1), 2, max_steps=2)
    assert played.episodic_length.tolist() == [2, 2]


@pytest.mark.parametrize("dtype", ["float99", "object", "U5", "f4,f4", "datetime64[s]", 7, None, "", "f4"])
def test_a_manifest_with_a_dtype_that_there_is_not_is_damage(dtype: Any, tmp_path: Path) -> None:
    state = {"x": jnp.arange(3)}
    jaxrl.save(tmp_path, state, 1)
    (tmp_path / "1" / "manifest.json").unlink()
    manifest.write(tmp_path / "1", 1, None, [LeafSpec("['x']", (3,), dtype)])
    with pytest.raises(CheckpointError, match=r"manifest\.json was altered: it cannot be parsed"):
        jaxrl.restore(tmp_path, state)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train ppo --env CartPole-v1 --gama 3", "Unrecognized options: --gama, 3 (did you mean --gamma?)"),
        ("train ppo --env CartPole-v1 --gamma x", "Error parsing --gamma: could not convert string to float: 'x'"),
        ("train ppo", "Missing from jaxrl train ppo: --env STR"),
        ("train ppo --env", "Missing value for argument '--env'"),
        ("train ppo --env CartPole-v1 --on-nan x", "invalid choice 'x' for argument '--on-nan'"),
        ("train --resume", "Missing value for argument '--resume'"),
        ("eval runs --whcih best", "Unrecognized options: --whcih, best (did you mean --which?)"),
        ("record runs --fps fast", "Error parsing --fps"),
        ("launch --processes two -- train ppo --env CartPole-v1", "Error parsing --processes"),
        ("sweep --out x", "Missing from jaxrl sweep"),
    ],
)
def test_wrong_flags_are_one_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"jaxrl: {said}") and err.count("\n") == 1 and "--help" in err


# ---------------------------------------------------------------------------------------------------------------------- fuzzing

CALLS = 400


def junk(draw: random.Random) -> Any:
    """Return something that a user might pass by mistake, or an attacker on purpose."""
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    return draw.choice(
        [
            *(None, True, False, -1, 0, 1, 3, 2.5, float("nan"), float("inf"), 1e300, 2**31, 2**70, -(2**70), 1j),
            *("", "abc", "\0", "a/b", "..", "a" * 5_000, "-" * 50_000, "|" * 3_000, "\udce9", "\x1b[31m", b"x", "1e5"),
            *([], [1], [None], {}, {"a": 1}, {"type": "x"}, set(), (), ("x",), range(3), deep, {1: 2}),
            *(object(), lambda: 0, int, Path("nowhere"), np.array([]), np.zeros((2, 2)), np.float32(1), np.array("x")),
            *(
                np.array([None]),
                jnp.zeros(2),
                jax.random.key(0),
                jax.random.split(jax.random.key(0), 2),
                Ellipsis,
                ValueError("x"),
            ),
        ]
    )


RUN = "seeds eval_every eval_episodes eval_explore chunk_iterations exact_steps hyperparams stop_at on_nan on_chunk init_from"
RUN += " init_which sampler overlap scheme num_workers devices_per_seed checkpoint_every keep_checkpoints save_replay out"
SETTINGS = "num_envs rollout_length num_epochs num_minibatches learning_rate gamma ent_coef anneal model optimizer schedules"
SETTINGS += " extra_losses normalize_observations axis_name surrogate surrogate.eps replay head head.v_max lr batch_size"


def calls(agent: Agent, trained: Path, folder: Path) -> dict[str, Callable[[Callable[[], Any], random.Random], Any]]:
    """Return the functions to call, which draw their arguments."""
    key, env = jax.random.key(0), probes.action_choice()
    state = {"x": jnp.arange(3)}
    return {
        "run": lambda any_, draw: jaxrl.run(
            agent, **{"total_steps": 64, "seeds": 2, "quiet": True, draw.choice(RUN.split()): any_()}
        ),
        "run steps": lambda any_, draw: jaxrl.run(agent, any_(), seeds=2, quiet=True),
        "run agent": lambda any_, draw: jaxrl.run(any_(), 64, quiet=True),
        "resume": lambda any_, draw: jaxrl.resume(any_(), total_steps=any_(), quiet=True, trust=any_()),
        "list_envs": lambda any_, draw: jaxrl.list_envs(any_()),
        "make_env": lambda any_, draw: jaxrl.make_env(any_()),
        "make_env options": lambda any_, draw: jaxrl.make_env("CartPole-v1", gravity=any_()),
        "make_ppo": lambda any_, draw: jaxrl.make_ppo(env, **{draw.choice(SETTINGS.split()): any_()}),
        "make_dqn": lambda any_, draw: jaxrl.make_dqn(env, **{draw.choice(SETTINGS.split()): any_()}),
        "Scheme": lambda any_, draw: jaxrl.Scheme(**{draw.choice(["num_workers", "clock", "lag", "timeout", "pin"]): any_()}),
        "vmap_seeds": lambda any_, draw: parallel.vmap_seeds(agent, any_()),
        "shard_seeds": lambda any_, draw: parallel.shard_seeds(agent, any_()),
        "data_parallel": lambda any_, draw: parallel.data_parallel(any_() if draw.random() < 0.3 else agent, any_()),
        "make_train": lambda any_, draw: jaxrl.make_train(agent, any_(), metrics_every=any_()),
        "evaluate": lambda any_, draw: jaxrl.evaluate(agent, any_(), key, 2),
        "evaluate how": lambda any_, draw: jaxrl.evaluate(agent, any_(), any_(), any_(), explore=any_(), max_steps=any_()),
        "save folder": lambda any_, draw: jaxrl.save(any_(), any_(), any_()),
        "save state": lambda any_, draw: jaxrl.save(folder / "saved", any_(), 1),
        "save how": lambda any_, draw: jaxrl.save(folder / "saved", state, any_(), spec=any_(), keep=any_()),
        "restore": lambda any_, draw: jaxrl.restore(any_(), any_()),
        "restore step": lambda any_, draw: jaxrl.restore(trained / "checkpoints", any_(), step=any_()),
        "load_policy": lambda any_, draw: jaxrl.load_policy(
            trained, **{draw.choice(["seed", "which", "explore", "key"]): any_()}
        ),
        "load_policy run": lambda any_, draw: jaxrl.load_policy(any_()),
        "build": lambda any_, draw: jaxrl.build(any_()),
        "build changed": lambda any_, draw: jaxrl.build({**agent.spec, draw.choice(list(agent.spec)): any_()}),
        "command": lambda any_, draw: main([str(any_())[:2_000] for _ in range(draw.randrange(4))]),
        "command train": lambda any_, draw: main(["train", "ppo", "--env", str(any_()), f"--{draw.choice(RUN.split())}", "x"]),
    }


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Limit memory to 8 GiB more than now.

    A call that requests all memory then fails, instead of the process being killed by the system.
    """
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**33, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for its memory in /proc")
@pytest.mark.usefixtures("little_memory")
@pytest.mark.filterwarnings("ignore")
def test_nothing_ends_in_an_error_of_the_wrong_kind(
    agent: Agent, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """400 calls with junk. JAXRL_FUZZ_SEED=… repeats the calls that a failure names."""
    seed = int(os.environ.get("JAXRL_FUZZ_SEED", time.time_ns() % 2**32))
    with capsys.disabled():  # and past pytest-xdist, which has no output of a worker that a call ends
        print(f"\nJAXRL_FUZZ_SEED={seed}", file=sys.__stderr__, flush=True)
    monkeypatch.chdir(tmp_path)
    driver: Any = faked(monkeypatch, {})
    driver.agent, wrong = agent, []
    for number in range(CALLS):
        shutil.rmtree(tmp_path / "saved", ignore_errors=True)
        draw, given = random.Random(f"{seed}/{number}"), []

        def any_(draw: random.Random = draw, given: list[Any] = given) -> Any:
            given.append(junk(draw))
            return given[-1]

        found = calls(agent, trained, tmp_path)
        name = draw.choice(list(found))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name](any_, draw)
        except SystemExit as end:  # a command's help
            if end.code not in (0, 2, None):
                wrong.append((number, name, given, end))
        except ALLOWED as error:
            said = str(error)
            for text in filter(lambda x: isinstance(x, str) and x, given):  # a path that is too long is the system's to name
                said = said.replace(text, "…")
            if not said or len(said) > MOST:
                wrong.append((number, name, given, error))
        except Exception as error:
            wrong.append((number, name, given, error))
    shown = [f"{number} {name}({', '.join(f'{x!r:.60}' for x in given)}): {error!r:.300}" for number, name, given, error in wrong]
    assert not wrong, f"JAXRL_FUZZ_SEED={seed}\n" + "\n".join(shown)
    assert not [path for path in tmp_path.rglob("*") if path.is_dir() and not any(path.iterdir())]
