"""Schemes: presets, refused combinations with the nearest valid one, and a resumed run keeps its scheme."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import jaxrl
from jaxrl.envs.subprocess.child import WorkerFailed
from jaxrl.models import actor_critic
from jaxrl.runtime.actors.pool import ActorPool
from jaxrl.runtime.actors.scheme import SCHEMES, Scheme, describe, resolve_scheme
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.cli.run_flags import run_flags
from jaxrl.runtime.training_loop.run_config import RunConfig
from jaxrl.types import Agent
from tests.helpers import probes
from tests.helpers.agents import small, small_ppo
from tests.helpers.hosted import Clock, clock
from tests.helpers.processes.actor_pools import nothing_left

ENV = "gymnasium:CartPole-v1"


def ppo(**settings: Any) -> Agent:
    return small_ppo(ENV, **settings)


def a2c(**settings: Any) -> Agent:
    return small("a2c", ENV, **settings)


def pure() -> Agent:
    return small_ppo(probes.truncation())


def dqn() -> Agent:
    return small("dqn", ENV)


def r2d2() -> Agent:
    return small("r2d2", ENV)


# ------------------------------------------------------------------------------------------------------------------- the grid


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("a2c", "ppo"),
        ("a3c", "a2c"),
        ("ga3c", "impala"),
        ("impala", "impala"),
        ("apex", "dqn"),
        ("r2d2", "r2d2"),
        ("ddppo", "ppo"),
    ],
)
def test_presets_serve_the_algorithm_that_they_are_named_for(name: str, algorithm: str) -> None:
    agent = small(algorithm, ENV)
    chosen = resolve_scheme(agent, name, 2)
    assert chosen == dataclasses.replace(SCHEMES[name], num_workers=2) == resolve_scheme(agent, dataclasses.asdict(chosen), None)
    assert describe(chosen, agent.num_envs).startswith(
        f"2 workers {'step' if chosen.inference == 'learner' else 'act and step'} in 2 env"
    )


def test_all_presets_are_known() -> None:
    assert set(SCHEMES) == {"a2c", "a3c", "ga3c", "impala", "apex", "r2d2", "ddppo", "es"} and jaxrl.Scheme is Scheme
    assert set(get_args(get_args(get_type_hints(run_flags())["scheme"])[0])) == set(SCHEMES)  # as on the command line


def test_how_many_workers() -> None:
    """The requested number, also if the scheme has another default. The default is at most the number of environments."""
    assert resolve_scheme(ppo(), None, None) is None
    for scheme, number, expected in [(None, 3, 3), (Scheme(num_workers=3), None, 3), (Scheme(num_workers=3), 2, 2)]:
        assert resolve_scheme(ppo(), scheme, number).num_workers == expected  # type: ignore[union-attr]
    assert resolve_scheme(ppo(num_envs=1, num_minibatches=1), "a2c", None).num_workers == 1  # type: ignore[union-attr]


def test_a_resumed_run_keeps_its_number_of_workers() -> None:
    """Also on a machine with other cores, if nothing else is asked for."""
    for scheme, number, expected in [("a2c", None, 4), (Scheme(num_workers=3), None, 3), ("a2c", 2, 2), ("a2c", 0, 4)]:
        assert resolve_scheme(ppo(), scheme, number, before=4).num_workers == expected  # type: ignore[union-attr]
    assert resolve_scheme(ppo(), None, None, before=4) is None
    config = RunConfig.of({"total_steps": 8, "scheme": "a2c"})
    assert config.for_agent(ppo(), {"scheme": {"num_workers": 4}}).collection.scheme.num_workers == 4
    assert config.for_agent(ppo(), {"scheme": None}).collection.scheme == config.for_agent(ppo()).collection.scheme


@pytest.mark.parametrize(("cores", "even", "any_number"), [(2, 1, 1), (4, 2, 3), (8, 4, 7), (32, 8, 8)])
def test_the_default_number_of_workers_fits(cores: int, even: int, any_number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight environments, in equal shares where gradients have equal weight."""
    monkeypatch.setattr("jaxrl.runtime.actors.scheme.usable_cores", lambda: cores)
    found = [
        resolve_scheme(agent, name, None).num_workers  # type: ignore[union-attr]
        for agent, name in ((a2c(num_envs=8), "a3c"), (ppo(num_envs=8), "ddppo"), (ppo(num_envs=8), "a2c"))
    ]
    assert found == [even, even, any_number]
    population = jaxrl.make_es(ENV, members=4, episodes=2, horizon=10)
    assert resolve_scheme(population, "es", None).num_workers == min(4, cores - 1)  # type: ignore[union-attr]


REFUSED: list[tuple[Callable[[], Agent], Any, Any, str]] = [
    (a2c, {"gradients": "workers", "inference": "learner"}, ValueError, r": use .*scheme='a3c'.*scheme='ga3c'"),
    (a2c, {"gradients": "workers", "updates": "all_reduced"}, ValueError, r": use .*scheme='ddppo'.*scheme='a3c'"),
    (ppo, {"updates": "all_reduced", "clock": "async", "lag": 1}, ValueError, r": use clock='deterministic'.*'ddppo'"),
    (ppo, {"updates": "all_reduced", "inference": "learner"}, ValueError, r": use .*inference='workers' \(scheme='ddppo'\)"),
    (
        ppo,
        {"clock": "async"},
        ValueError,
        r"^clock='async' with lag=0 .* lag=1 or clock='deterministic' \(scheme='a2c'\)",
    ),
    (
        ppo,
        "a3c",
        ValueError,
        r"^gradients='workers' is for algorithms .* and PPO takes several: use scheme='ddppo'",
    ),
    (dqn, "a3c", ValueError, r"^gradients='workers' is for algorithms .* and DQN takes several: use scheme='apex'"),
    (a2c, "impala", ValueError, r"and A2C does not correct for stale data: use scheme='a2c'"),
    (a2c, {"lag": 1}, ValueError, r"and A2C does not correct for stale data: use scheme='a2c'"),
    (ppo, {"sync_fraction": 0.0}, ValueError, r"^scheme\.sync_fraction=0 is not allowed: it must be a number in \(0, 1\]"),
    (ppo, {"sync_fraction": 1.1}, ValueError, r"^scheme\.sync_fraction=1\.1 is not allowed: it must be a number in \(0, 1\]"),
    (ppo, {"sync_fraction": "0.6"}, TypeError, r"^scheme\.sync_fraction='0\.6'"),
    (
        ppo,
        {"sync_fraction": 0.6, "clock": "async", "lag": 1},
        ValueError,
        r"with clock='async' none waits: .* \(scheme='ddppo'\)$",
    ),
    (ppo, {"sync_fraction": 0.6, "inference": "learner"}, ValueError, r"^sync_fraction=0\.6 .* all step together: use"),
    (
        r2d2,
        {"sync_fraction": 0.5},
        ValueError,
        r"^sync_fraction=0\.5 leaves gaps in replay, after which R2D2 .* scheme='r2d2', where",
    ),
    (
        a2c,
        {"num_workers": 5},
        ValueError,
        r"^num_workers=5 must be at most num_envs=4: each worker needs at least one environment$",
    ),
    (a2c, {"num_workers": 3, "gradients": "workers"}, ValueError, r"^num_envs=4 must be a multiple of num_workers=3"),
    (ppo, {"num_workers": 3, "updates": "all_reduced"}, ValueError, r"^num_envs=4 must be a multiple of num_workers=3"),
    (ppo, "impalla", ValueError, r"^unknown scheme 'impalla'\. Did you mean 'impala'"),
    (ppo, {"num_worker": 2}, TypeError, r"^scheme has no 'num_worker'\. Did you mean 'num_workers'\? It has num_workers, "),
    (ppo, {"clock": "wall"}, (TypeError, ValueError), r"scheme\.clock='wall'"),
    (ppo, {"lag": -1}, (TypeError, ValueError), r"scheme\.lag=-1"),
    (ppo, {"timeout": 0.0}, (TypeError, ValueError), r"scheme\.timeout=0"),
    (ppo, {"max_restarts": 1.5}, (TypeError, ValueError), r"scheme\.max_restarts=1\.5"),
    (ppo, {"pin": "yes"}, (TypeError, ValueError), r"scheme\.pin='yes'"),
    (ppo, {"engine": "ray"}, ValueError, r"^engine='ray' needs num_workers, one for each CPU of the cluster"),
    (ppo, {"engine": "ray", "num_workers": 2, "pin": True}, ValueError, r"^pin=True .* this machine: leave pin out"),
    (ppo, {"engine": "ray", "num_workers": 2, "inference": "learner"}, ValueError, r"^engine='ray' .*: use inference='workers'"),
    (ppo, {"engine": "rai", "num_workers": 2}, (TypeError, ValueError), r"scheme\.engine='rai'"),
    (ppo, {"placement": "spread"}, ValueError, r"^placement and insecure are for workers on a cluster: use engine='ray', or"),
    (ppo, {"insecure": True}, ValueError, r"^placement and insecure are for workers on a cluster"),
    (ppo, 3, TypeError, r"^scheme=3 must be a jaxrl\.Scheme, one of a2c, .*, or a mapping of a scheme's fields$"),
    (
        pure,
        "a2c",
        ValueError,
        r"^scheme=… is for environments on the host, and .*leave scheme out$",
    ),
]


@pytest.mark.parametrize(("build", "scheme", "error", "message"), REFUSED, ids=[str(each[1]) for each in REFUSED])
def test_what_cannot_be_is_refused_and_the_nearest_named(build: Any, scheme: Any, error: Any, message: str) -> None:
    """In one line, before any process starts."""
    with nothing_left(), pytest.raises(error, match=message) as raised:
        jaxrl.run(build(), 64, scheme=scheme, quiet=True)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("more", [{"overlap": True}, {"sampler": "alternating"}])
def test_one_answer_to_who_collects(more: dict[str, Any]) -> None:
    agent = small_ppo("envpool:CartPole-v1")
    with pytest.raises(ValueError, match=r"is for environments in this process: leave it out, or use the scheme's clock="):
        jaxrl.run(agent, 64, scheme="a2c", quiet=True, **more)


# ---------------------------------------------------------------------------------------------------------------- failed starts


def local_model(observation_space: Any, action_space: Any) -> Any:
    return actor_critic(observation_space, action_space, hidden_sizes=(8,))


def refused(agent: Agent, error: Any, message: str, **options: Any) -> None:
    with nothing_left(), pytest.raises(error, match=message) as raised:
        ActorPool(agent, [0], **{"num_workers": 2, **options}).close()
    assert "\n" not in str(raised.value)


def test_pools_that_cannot_be() -> None:
    """No process is started for them."""
    refused(small_ppo(probes.truncation()), TypeError, r"is a pure environment")
    refused(ppo(), ValueError, r"^num_workers=5 must be at most num_envs=4", num_workers=5)
    refused(
        ppo(model=lambda *spaces: local_model(*spaces)), ValueError, r"^worker processes cannot import model=.*separate module$"
    )
    refused(ppo(), ValueError, r"^unknown clock 'asynchronous'", clock="asynchronous")
    refused(ppo(), ValueError, r"timeout", timeout=0)
    refused(ppo(), ValueError, r"sync_fraction", sync_fraction=0.0)
    refused(ppo(), ValueError, r"^sync_fraction=0.5 needs clock='deterministic'", sync_fraction=0.5, clock="async")


class NoPart(Clock):
    """An environment that cannot be opened in parts."""

    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__(num_envs, seed)


@pytest.mark.parametrize("why", ["raises", pytest.param("has no parts", marks=pytest.mark.slow)])
def test_environments_that_do_not_start(why: str, tmp_path: Path) -> None:
    """One error, of the first worker that reports it."""
    if why == "raises":
        agent = small_ppo("gymnasium:tests.helpers.gymnasium_envs:Failing?how=reset")
        message = r"^worker [01] \(environments \d to \d\) failed: .*raised KeyError: 'start'.*, before it could start$"
    else:
        agent, message = (
            small_ppo(clock(NoPart)),
            r"^worker 1 .* let open take \(num_envs, seed, first_id=0\).*before it could start$",
        )
    refused(agent, WorkerFailed, message)


# ----------------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.slow
def test_the_command_line_trains_by_a_scheme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run folder stores the scheme, and a resumed run uses it."""
    out = tmp_path / "run"
    sizes = ["--num-envs", "4", "--rollout-length", "8", "--total-steps", "96", "--eval-every", "0", "--no-tensorboard"]
    with nothing_left():
        words = ["train", "impala", "--env", ENV, "--scheme", "impala", "--num-workers", "2", *sizes, "--out", str(out)]
        assert main(words) == 0
        assert "2 workers act and step in 2 environments per seed" in capsys.readouterr().out
        kept = json.loads((out / "config.json").read_text())["run"]["scheme"]
        scheme = dataclasses.asdict(dataclasses.replace(SCHEMES["impala"], num_workers=2))
        places = ("engine", "placement", "insecure")  # stored elsewhere, since a resumed run may have others
        assert kept == {name: value for name, value in scheme.items() if name not in places}
        assert {path.name for path in (out / "workers").iterdir()} == {"worker-0.log", "worker-1.log"}
        assert main(["train", "--resume", str(out), "--total-steps", "128"]) == 0
        assert "2 workers act and step" in capsys.readouterr().out
    with pytest.raises(FileExistsError, match=r"run\.scheme"):
        agent = jaxrl.build(json.loads((out / "config.json").read_text())["agent"])
        jaxrl.run(agent, 128, out=out, scheme="impala", num_workers=1, eval_every=0, tensorboard=False, quiet=True)
