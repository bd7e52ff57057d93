"""Machinery of the benchmarks: command line, workers, tables, resumption. The measured values are not tested here."""

import json
import math
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest

import jaxrl
from benchmarks import cases, claims, kernels, numbers, peer, pictures, report, scores, speed, starts, summary, thin, work
from benchmarks.__main__ import documents, main, make_parser
from benchmarks.experiments import EXPERIMENTS, Experiment
from benchmarks.pauses import PauseWatch
from benchmarks.protocol import ROOT, Worker, WorkerError, clean_environment
from benchmarks.worker import Session, count_launches
from jaxrl.agent import state_shapes
from jaxrl.metrics import to_floats
from jaxrl.runtime.system.devices import usable_cores

pytestmark = pytest.mark.expensive(50)

TINY = cases.Case(
    "tiny", "Tiny", "ppo", "ppo", cases.PPO | {"num_envs": 2, "rollout_length": 8}, 160, num_seeds=2, runs_per_section=2
)

# ---------------------------------------------------------------------------------------------------------------- command line


def test_alone_it_prints_help(capsys):
    assert main([]) == 0
    assert "scores" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["scores", "ppo-cartpol"], "Did you mean 'ppo-cartpole'?"),
        (["speed", "--only", "td3"], "'ppo'"),
        (["kernels", "--only", "td3"], "'dqn'"),
        (["speed", "--without-peer", "rlax"], "'sbx'"),
        (["speed", "--repeats", "0"], "at least 1"),
        (["speed", "--scale", "2"], "at most 1"),
    ],
)
def test_wrong_arguments_are_named(args, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(args)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_arguments():
    given = make_parser().parse_args(["speed", "--only", "dqn", "ppo-minatar", "--repeats", "3", "--without-peer"])
    assert (given.only, given.repeats, given.without_peer, given.scale) == (["dqn", "ppo-minatar"], 3, [], 1.0)
    assert make_parser().parse_args(["speed", "--without-peer", "sbx"]).without_peer == ["sbx"]
    assert make_parser().parse_args(["scores"]).names == []


def test_kernels_prints_a_table(monkeypatch, capsys):
    asked = []

    def count(given):
        asked.extend(case.name for case in given)
        return {case.name: {"row": 50, "update": 250.5, "iteration": 407} for case in given}

    monkeypatch.setattr(kernels, "count", count)
    assert main(["kernels", "--only", "dqn"]) == 0
    assert asked == ["dqn-10k", "dqn-100k", "dqn-1m", "dqn-8-seeds"]
    assert cells(capsys.readouterr().out, "DQN, buffer 1M")[1:] == ["50", "250.5", "407"]


def test_a_table_of_nothing_says_what_to_run(tmp_path, capsys):
    assert main(["table", "--out", str(tmp_path)]) == 2
    assert "python -m benchmarks speed" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------------------------- workers

WORKER = """
from benchmarks.pauses import PauseWatch
from benchmarks.protocol import serve
def add(a, b):
    print("stray output")
    return {"sum": a + b}
def die():
    raise OSError("out of luck")
serve({"add": add, "die": die})
"""


def test_a_worker_answers_until_it_dies(tmp_path):
    with Worker([sys.executable, "-c", WORKER], clean_environment(tmp_path)) as worker:
        assert worker.ask("add", a=1, b=2) == {"sum": 3}
        assert worker.ask("add", a=3, b=4) == {"sum": 7}
        with pytest.raises(WorkerError, match=r"ended with code 1 at 'die'") as error:
            worker.ask("die")
    assert "stray output" in str(error.value) and "OSError: out of luck" in str(error.value)


def test_workers_inherit_no_settings_of_jax(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    environment = clean_environment(tmp_path)
    assert not {"JAX_NUM_CPU_DEVICES", "XLA_FLAGS"} & environment.keys()
    assert environment["JAX_PLATFORMS"] == "cpu"
    assert environment["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path)


class FakeWorker:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def ask(self, op, **arguments):
        self.log.append((op, self.name, arguments))
        return {"returns": [1.0]} if op == "evaluate" else {"seconds": 2.0, "env_steps": 100, "peak_bytes": 1}


def test_sections_take_turns():
    log, keys = [], [(TINY, "updates"), (TINY, "jaxrl"), (TINY, "rejax")]
    workers = {("tiny", side): FakeWorker(side, log) for _, side in keys}
    programs = {"tiny": {"updates": {}, "jaxrl": {}, "rejax": {}}}
    speed.time_in_turns(keys, 2, workers, programs, PauseWatch())
    assert [name for op, name, _ in log if op == "train"] == ["updates", "jaxrl", "rejax"] * 3
    assert {name for op, name, arguments in log if op == "evaluate" or arguments["keep"]} == {"jaxrl", "rejax"}
    assert [arguments["keep"] for op, name, arguments in log if (op, name) == ("train", "jaxrl")] == [False, True, True]
    assert len({arguments["first_seed"] for op, _, arguments in log if op == "train"}) == 3
    assert len(programs["tiny"]["rejax"]["sections"]) == 2
    assert programs["tiny"]["rejax"]["returns"] == [1.0]


def test_groups_that_were_done_are_kept(tmp_path, monkeypatch, capsys):
    measured = []

    def measure(given, keys, *_, **__):
        measured.append(given[0].group)
        if len(measured) == 3:
            raise KeyboardInterrupt
        return [case._asdict() | {"programs": {"jaxrl": {}}} for case in given]

    monkeypatch.setattr(speed, "find_gpu", lambda: None)
    monkeypatch.setattr(speed, "measure", measure)
    monkeypatch.setattr(speed, "add_counts", lambda *_, **__: None)
    monkeypatch.setattr(speed.kernels, "machine_rates", lambda: {"matmul_flops_per_second": 1.0, "kernel_seconds": 1e-7})
    assert main(["speed", "--without-peer", "--out", str(tmp_path)]) == 130
    assert measured == ["ppo", "dqn", "ppo-recurrent"] and "--only measures the others" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["speed-dqn.json", "speed-ppo.json"]
    assert [result["group"] for result in summary.read_speed(tmp_path)] == ["ppo", "dqn"]
    speed.run(["ppo-minatar"], out=tmp_path, without=["rejax"])
    (result,) = (result for result in summary.read_speed(tmp_path) if result["group"] == "ppo-minatar")
    assert [case["name"] for case in result["cases"]] == ["breakout-mlp", "breakout-conv"] and result["kernel_seconds"] == 1e-7


@pytest.mark.parametrize(("jumps", "expected"), [([0.1], 1), ([40.0, 0.1], 2), ([40.0] * 9, 4)])
def test_what_a_pause_of_the_machine_disturbed_is_measured_again(jumps, expected, capsys):
    now, calls = [0.0], []

    def sleep(seconds):
        now[0] += seconds
        watch.look()

    watch = PauseWatch(clock=lambda: now[0], sleep=sleep)

    def measure():
        now[0] += jumps[len(calls)]
        calls.append(now[0])
        return len(calls)

    assert watch.undisturbed(measure, "this") == expected == len(calls)
    assert capsys.readouterr().err.count("paused for 40 s") == sum(jump > 1 for jump in jumps[:expected])


def test_launches_are_events_on_gpu_streams():
    def line(name, number):
        return SimpleNamespace(name=name, events=[None] * number)

    gpu = SimpleNamespace(name="/device:GPU:0", lines=[line("Stream #1(Compute)", 5), line("Stream #2", 2), line("XLA Ops", 9)])
    host = SimpleNamespace(name="/host:CPU", lines=[line("Stream of thought", 7)])
    assert count_launches([gpu, host]) == 7


# -------------------------------------------------------------------------------------------------------------------- programs


def test_cases_are_small_enough_when_scaled():
    for case in cases.CASES:
        small = cases.scaled(case, 1e-6)
        rows = case.settings["num_envs"] * case.settings.get("rollout_length", 1)
        assert rows < small.total_steps <= max(2 * rows, 2 * case.settings.get("learning_starts", 0))
        assert cases.scaled(case, 1.0) == case


@pytest.mark.slow
def test_a_program_trains_from_its_seeds_and_is_evaluated():
    from benchmarks.jaxrl_side import make_program

    session = Session(make_program(TINY, "jaxrl"), TINY)
    about = session.compile()
    assert about["parameters"] == 9155  # 2 · (4·64 + 64 + 64·64 + 64) + (64·2 + 2) + (64 + 1)
    assert about["total_steps"] == 160
    section = session.train(first_seed=5)
    assert 0.5 * 640 < section["env_steps"] <= 640 and section["peak_bytes"] > 0
    first, second = session._trained[5]
    same = jax.tree.map(lambda a, b: np.array_equal(a, b), first.params, second.params)
    assert not any(jax.tree.leaves(same)), "two runs of one section share a seed"
    assert len(session.evaluate()["returns"]) == 4


def test_the_bound_does_the_same_rollouts_without_a_network():
    from benchmarks.jaxrl_side import make_program

    program = make_program(TINY, "random")
    assert program.compile()[1] == 0
    _, steps = program.train(np.arange(2))
    assert 0.8 * 320 < steps < 320  # episodes of about 22 steps, each with a reset row


@pytest.mark.slow
def test_the_updates_alone_are_those_of_training(monkeypatch):
    """Also on the devices that training would use."""
    from benchmarks.jaxrl_side import make_agent, make_program, updates_alone
    from jaxrl.runtime.trainers import device_layout

    agent = make_agent(TINY)
    alone = updates_alone(agent)

    @jax.jit
    def compared(key):
        started = alone.init(key)
        return agent.step(agent.init(key)), started, alone.step(started)

    (trained, metrics), started, (updated, same) = compared(jax.random.key(3))
    chex.assert_trees_all_close(trained.learner.params, updated.learner.params, atol=1e-6)
    assert to_floats(same)["losses/value_loss"] == pytest.approx(to_floats(metrics)["losses/value_loss"], rel=1e-4)
    chex.assert_trees_all_equal(updated.actor, started.actor)

    monkeypatch.setattr(device_layout, "MIN_ROWS", 8)
    shared = make_program(TINY._replace(total_steps=16, num_seeds=1), "updates")
    states, steps = shared.train(np.array([3], np.uint32))
    assert steps == 16
    leaf = jax.tree.leaves(states.actor.rows)[0]
    assert len(leaf.sharding.device_set) == min(len(jax.devices()), usable_cores(), 2)
    alone_params = jax.tree.map(lambda x: x[0], states.learner.params)
    chex.assert_trees_all_close(trained.learner.params, alone_params, atol=1e-5)


def test_networks_are_of_the_size_that_they_should_be():
    from benchmarks.jaxrl_side import make_agent

    def parameters(name):
        agent = make_agent(next(case for case in cases.CASES if case.name == name))
        return sum(leaf.size for leaf in jax.tree.leaves(state_shapes(agent).learner.params))

    torso = 10 * 10 * 4 * 64 + 64 + 64 * 64 + 64  # Rejax's: the flattened board, twice, with 3 actions and a value
    assert parameters("breakout-mlp") == 2 * torso + (64 * 3 + 3) + (64 + 1)
    board = 3 * 3 * 4 * 16 + 16 + 8 * 8 * 16 * 128 + 128  # Young & Tian's: 16 channels, 128 units, and both heads on them
    assert parameters("breakout-conv") == board + (128 * 3 + 3) + (128 + 1)
    seen = 2 + 2 + 1  # two of CartPole's four numbers, the previous action and the previous reward
    gates = 3 * (64 * 64 + 64) + 3 * 64 * 64  # of the input, with a bias, and of the carry
    assert parameters("ppo-gru") == (seen * 64 + 64 + 64 * 64 + 64) + gates + (64 * 2 + 2) + (64 + 1)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_what_is_measured_of_a_case(case):
    rejax = [] if case.no_peer else ["rejax"]
    assert [side for _, side in speed.sides_of([case])] == ["updates", "jaxrl", *rejax, *case.beside, "random"]
    alone = [side for _, side in speed.sides_of([case], without=["rejax", "sbx"])]
    assert alone == ["updates", "jaxrl", *(["vmapped"] if "vmapped" in case.beside else []), "random"]
    assert case.group in cases.GROUPS and set(case.beside) <= {"sbx", "vmapped"}


def test_a_peer_says_what_it_needs_and_where_it_is():
    for name, first in (("rejax", "rejax=="), ("sbx", "sbx-rl==")):
        requirements = peer.PEERS[name].requirements(gpu=False)
        assert requirements[0].startswith(first) and all("==" in line or line == "six" for line in requirements)
        assert requirements[-1] == f"jax=={jax.__version__}"
        assert peer.PEERS[name].python.parts[-3:] == (f".venv-{name}", "bin", "python")
    assert "torch==2.13.0" in peer.PEERS["sbx"].requirements(gpu=False)
    with pytest.raises(peer.PeerError, match=r"environment of SBX could not be built: .* failed\. --without-peer sbx skips it"):
        peer.PEERS["sbx"]._run(sys.executable, "-c", "raise SystemExit(1)")


def test_sac_makes_one_update_per_step_at_one_rate():
    from benchmarks.jaxrl_side import make_agent

    for case in (case for case in cases.CASES if case.group == "sac"):
        agent = make_agent(case)
        settings, params = agent.spec["settings"], state_shapes(agent).learner.params
        assert settings["replay_ratio"] * settings["num_envs"] * settings["rollout_length"] == settings["batch_size"]
        assert {settings[name] for name in settings if name.endswith("learning_rate")} == {case.settings["learning_rate"]}
        width = case.hidden_sizes[0]
        both = 2 * (4 * width + width + width * width + width + width + 1)  # critics of 3 numbers and the action
        assert sum(x.size for x in jax.tree.leaves(params.critic)) == both
        assert sum(x.size for x in jax.tree.leaves(params.actor)) == 3 * width + width + width * width + width + 2 * (width + 1)


@pytest.mark.slow
def test_all_seeds_on_one_device_learn_what_they_do_on_several():
    from benchmarks.jaxrl_side import make_program

    params, case = [], TINY._replace(total_steps=16)
    for side in ("jaxrl", "vmapped"):
        program = make_program(case, side)
        params.append(jax.device_get(program.train(np.arange(2, dtype=np.uint32))[0].learner.params))
    assert len(program._layout[0]) == 1
    chex.assert_trees_all_close(*params, atol=1e-3)  # other rounding; weights of another seed differ by 1


def test_the_bound_draws_actions_between_bounds():
    from benchmarks.jaxrl_side import make_random_agent

    agent = make_random_agent("Pendulum-v1", 4, 2)
    state = agent.init(jax.random.key(0))
    act = partial(agent.algorithm.act, agent.algorithm.policy(state.learner), (), state.actor.input, np.arange(4))
    actions = np.array([act(jax.random.key(i), explore=True)[1] for i in range(50)])
    assert actions.shape == (50, 4, 1) and -2 <= actions.min() < -1.8 and 1.8 < actions.max() <= 2


def test_starting_a_kernel_takes_time():
    assert starts.kernel_seconds(seconds=0.01) > 0


def test_dqn_makes_one_update_per_step():
    from benchmarks.jaxrl_side import make_agent

    settings = make_agent(next(case for case in cases.CASES if case.name == "dqn-10k")).spec["settings"]
    assert settings["replay_ratio"] * settings["num_envs"] * settings["rollout_length"] == settings["batch_size"]


# ---------------------------------------------------------------------------------------------------------------------- tables


def program(name, rates, compiled, returns, steps=1000):
    return {
        "name": name,
        "versions": {name: "1.2"},
        "sections": [{"seconds": 2.0, "env_steps": 2 * rate, "peak_bytes": 2**20 * 300} for rate in rates],
        "compile_seconds": compiled,
        "cached_compile_seconds": [seconds / 4 for seconds in compiled],
        "parameters": 9155,
        "total_steps": steps,
        "returns": returns,
    }


def fake_result(ours=(2000, 4000, 10_000), theirs=(1000, 1000, 2000)):
    programs = {
        "jaxrl": program("jaxrl", ours, [1.0, 2.0], [490.0, 500.0]),
        "rejax": program("rejax", theirs, [2.0, 2.0], [480.0, 480.0]),
        "random": program("jaxrl", [6000], [0.5], [20.0]),
    }
    return {
        "group": "ppo",
        "command": "python -m benchmarks speed",
        "date": "2026-01-02",
        "hardware": {"cpu": "a processor", "cores": 2, "gpu": None},
        "load": 0.1,
        "scale": 1.0,
        "cases": [{"name": name, "title": name, "programs": programs} for name in ("ppo-1-seed", "ppo-8-seeds")],
    }


def cells(text, start):
    line = next(line for line in text.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_speed_tables():
    text = report.speed_report(fake_result())
    first = ["ppo-1-seed", "jaxrl", "4k (2k–10k)", "66.7%", "1.50", "0.38", "300", "9,155", "1k", "495.0 ± 5.0"]
    assert cells(text, "ppo-1-seed") == first
    ratios = text[text.index("jaxrl / Rejax") :]
    # Paired: 2000/1000, 4000/1000, 10000/2000.
    assert cells(ratios, "ppo-1-seed")[1:] == ["4.00 (2.00–5.00)", "0.75 (0.50–1.00)", "0.75 (0.50–1.00)", "1.00", "+15.0 ± 5.0"]
    assert cells(text, "PPO, 8 seeds: speed")[1:] == ["≥ 3.40", "4.00 (2.00–5.00)", "yes"]
    assert cells(text, "PPO, 1 seed: trace and compile from")[1:] == ["≤ 0.33", "0.25 (0.25–0.25)", "yes"]
    assert "No GPU was available" in text


def test_kernels_and_the_share_of_the_matmul_rate():
    result = fake_result() | {"matmul_flops_per_second": 2e9}
    ours = result["cases"][0]["programs"]["jaxrl"]  # shared by both cases
    ours |= {"matmul_flops": 1e9, "kernels": {"row": 39.0, "update": 64.25, "iteration": 7123.0}}
    ours["sections"][0]["seconds"] = 1.0  # the others have 2 s
    text = work.work_table(result["cases"], 2e9)
    assert cells(text, "ppo-1-seed")[1:] == ["39", "64.2", "7,123", "500M (500M–1G)", "25.0%"]
    assert "this machine does 2Gflop/s" in text
    assert text in report.speed_report(result) and "flop/s" not in report.speed_report(fake_result())
    del ours["kernels"]  # as on a GPU, where they are measured
    assert cells(work.work_table(result["cases"], 2e9), "ppo-1-seed")[1:] == ["500M (500M–1G)", "25.0%"]


def test_where_the_time_goes():
    case = TINY._replace(settings=TINY.settings | {"num_epochs": 3, "num_minibatches": 5}, num_seeds=1, runs_per_section=2)
    ours = program("jaxrl", (), [1.0], [0.0], steps=160)  # 10 iterations, in two runs
    ours |= {"sections": [{"seconds": s, "env_steps": 160} for s in (2.0, 4.0, 8.0)], "update_matmul_flops": 3e7}
    ours["kernels"] = {"row": 10.0, "update": 100.0, "iteration": 1580.0}
    updates = {"total_steps": 32, "sections": [{"seconds": s} for s in (0.3, 0.6, 0.6)]}  # 2 iterations
    measured = [case._asdict() | {"programs": {"jaxrl": ours, "updates": updates}}]
    row = cells(work.share_table(measured, 1e9, 1e-5), "Tiny")
    # An iteration takes 0.1, 0.2, 0.4 s, its updates 0.075, 0.15, 0.15 s: 1,500 of 1,580 kernels, for 15 gradient steps.
    assert row[1:5] == ["25% (25%–62%)", "6.25k", "10k", "200M (200M–400M)"]
    assert row[5:] == ["20%", "–", "10%", "–"]
    ours["update_product_seconds"] = 0.06
    row = cells(work.share_table(measured, 1e9, 1e-5), "Tiny")
    assert row[5:] == ["20%", "40%", "10%", "50%"]
    page = summary.page_table([{"cases": measured, "matmul_flops_per_second": 1e9}], "ppo")
    assert cells(page, "Tiny")[4:] == ["25%", "20%"]
    assert cells(work.share_table(measured, 1e9, None), "Tiny")[5:] == ["20%"]  # as on a GPU


def test_a_case_that_the_peer_has_not_says_why():
    result = fake_result()
    programs = {side: program for side, program in result["cases"][0]["programs"].items() if side != "rejax"}
    result["cases"][1] |= {"no_peer": "has no such thing", "programs": programs}
    table, _, ratios = report.speed_report(result).partition("jaxrl / Rejax")
    lines = table.splitlines()
    ours = next(number for number, line in enumerate(lines) if line.startswith("| ppo-8-seeds"))
    reason = [cell.strip() for cell in lines[ours + 1].strip("|").split("|")]
    assert reason == ["", "Rejax", "has no such thing", *["–"] * 7] and lines[ours].count("|") == lines[ours + 1].count("|")
    assert "| ppo-1-seed" in ratios and "| ppo-8-seeds" not in ratios


def test_beside_sbx_and_beside_seeds_on_one_device():
    result = fake_result() | {"group": "sac", "matmul_flops_per_second": 1e10}
    both = result["cases"][0]["programs"]
    both |= {
        "sbx": program("sbx", (500, 2000, 1000), [], [470.0, 480.0]),
        "vmapped": program("jaxrl", (1000, 2000, 5000), [], [1.0]),
    }
    for side in ("sbx", "vmapped"):  # their compilation is not measured
        del both[side]["compile_seconds"], both[side]["cached_compile_seconds"]
    both["jaxrl"]["matmul_flops"] = 1.4e10  # in 2 s: 70 % of the machine's rate
    for case, name in zip(result["cases"], ("sac-256", "sac-8-seeds"), strict=True):
        case |= {"name": name, "title": name, "beside": ["sbx", "vmapped"]}
    text = report.speed_report(result | {"without": []})
    assert cells(text, "sac-256")[:3] == ["sac-256", "jaxrl", "4k (2k–10k)"]
    assert " SBX |" in text.partition("jaxrl / Rejax")[0] and "steps gymnasium's environment in Python" in text
    assert cells(text[text.index("jaxrl / SBX") :], "sac-256")[1:4] == ["4.00 (2.00–10.00)", "–", "–"]
    assert cells(text, "SAC, 2×256: speed, × SBX")[1:] == ["≥ 1.30", "4.00 (2.00–10.00)", "yes"]
    assert cells(text, "SAC, 2×256: its matrix")[1:] == ["≥ 0.60", "0.70 (0.70–0.70)", "yes"]
    assert cells(text, "SAC, 2×64, 8 seeds sharded")[1:] == ["≥ 1.30", "2.00 (2.00–2.00)", "yes"]
    assert cells(text, "SAC, 2×256: return − SBX's")[1:] == ["≥ −2 s.e.", "+20.0 ± 7.1", "yes"]
    for side in ("sbx", "rejax"):
        both.pop(side)
    text = report.speed_report(result | {"without": ["rejax", "sbx"]})
    assert "Not measured (`--without-peer`): Rejax, SBX." in text
    assert "× SBX" not in text and "× Rejax" not in text


def test_short_tables(tmp_path):
    result = fake_result()
    result["cases"][1] |= {"title": "alone", "no_peer": "has none", "programs": {"jaxrl": program("jaxrl", [4000], [], [])}}
    assert cells(summary.peer_table([result]), "ppo-1-seed")[1:] == ["4k", "1k", "4"]
    assert cells(summary.peer_table([result]), "alone")[1:] == ["4k", "has none", "–"]
    assert "alone" not in summary.peer_table([result], ["ppo-1-seed"])
    result["cases"] = [case | {"algorithm": name} for case, name in zip(result["cases"], ("ppo", "dqn"), strict=True)]
    assert "alone" not in summary.page_table([result], "ppo")
    assert cells(summary.page_table([result], "dqn"), "alone")[1:] == ["4k", "has none", "–", "–", "–"]
    with pytest.raises(ValueError, match="no speed of td3"):
        summary.page_table([result], "td3")


def test_tables_are_filled_into_their_places():
    text = "# A\n\n<!-- begin a: python -m benchmarks table -->\n\nold\n\n<!-- end -->\n\nmiddle\n\n"
    text += "<!-- begin b: python -m benchmarks table -->\n\n| older |\n\n<!-- end -->\n"
    new = summary.fill(text, {"a": "| x |\n| y |", "b": "z"})
    assert new == text.replace("| older |", "z").replace("old", "| x |\n| y |")
    assert summary.fill(new, {"a": "| x |\n| y |", "b": "z"}) == new
    for tables in ({"a": ""}, {"a": "", "b": "", "c": ""}):
        with pytest.raises(ValueError, match=r"places for the tables \['a', 'b'\]"):
            summary.fill(text, tables)
    with pytest.raises(ValueError, match=r"places for the tables \['a', 'a'\]"):
        summary.fill(text.replace("begin b", "begin a"), {"a": ""})


@pytest.mark.parametrize("path", ["README.md", "docs/results.md"])
def test_pages_have_what_was_measured(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    text, tables = Path(path).read_text(), documents(Path("benchmarks/results"))
    assert summary.fill(text, tables[Path(path)]) == text, "python -m benchmarks table"


def test_results_are_thin(tmp_path):
    """A curve has few points and digits, with the last point. A file has one line per key."""
    steps = np.arange(50)[:, None] * 1000 + np.array([0, 3])
    returns = np.random.default_rng(0).normal(100, 10, (50, 2))
    returns[0], returns[7, 1], returns[-1] = np.nan, np.nan, (123.456, 500.0)
    history = thin.thin_history({"env_steps": steps, "charts/episodic_return": returns, "rows": steps[:, 0]})
    assert history.keys() == {"env_steps", "charts/episodic_return"}
    assert len(history["env_steps"]) == thin.MAX_POINTS and history["env_steps"][0] == 1002 and history["env_steps"][-1] == 49002
    assert history["charts/episodic_return"][-1] == [123.5, 500]
    full = thin.full_history(history)
    chosen = [int(step) // 1000 for step in history["env_steps"]]
    np.testing.assert_allclose(full["charts/episodic_return"], returns[chosen], rtol=5e-4)
    np.testing.assert_allclose(full["env_steps"], steps[chosen], atol=2)
    few = thin.thin_history({"env_steps": steps[6:9], "charts/episodic_return": returns[6:9]})
    assert len(few["env_steps"]) == 3 and few["charts/episodic_return"][1][1] is None
    assert np.isnan(thin.full_history(few)["charts/episodic_return"][1, 1])
    nothing = thin.thin_history({"env_steps": steps[:1], "charts/episodic_return": returns[:1]})
    assert nothing == {"env_steps": [], "charts/episodic_return": []}
    assert thin.full_history(nothing)["charts/episodic_return"].shape == (0, 0)
    thin.write_thin(tmp_path / "a.json", {"name": "≥", "history": history})
    assert len((tmp_path / "a.json").read_text().splitlines()) == 4
    assert json.loads((tmp_path / "a.json").read_text()) == {"name": "≥", "history": history}


def test_the_kept_results_are_thin():
    """At most a tenth of 5.7 MB, the size of this folder with complete curves and a picture of each."""
    folder = ROOT / "benchmarks/results"
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {".json", ".png"}
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 570_000
    for path in (folder / "scores").glob("*.json"):
        assert len(json.loads(path.read_text())["history"]["env_steps"]) <= thin.MAX_POINTS, path.name


def test_what_is_counted_is_kept_with_what_is_measured(monkeypatch):
    monkeypatch.setattr(speed.kernels, "count_flops", lambda given: {case.name: {"matmul_flops": 7} for case in given})
    monkeypatch.setattr(speed.kernels, "count", lambda given: {case.name: {"row": 1} for case in given})
    monkeypatch.setattr(
        speed.kernels, "time_products", lambda given: {case.name: {"update_product_seconds": 2} for case in given}
    )
    measured = [{"name": "tiny", "programs": {"jaxrl": {"name": "jaxrl"}, "random": {}}}]
    speed.add_counts(measured, [TINY], on_cpu=True)
    ours = {"name": "jaxrl", "matmul_flops": 7, "update_product_seconds": 2, "kernels": {"row": 1}}
    assert measured[0]["programs"] == {"jaxrl": ours, "random": {}}
    measured[0]["programs"]["jaxrl"].clear()
    speed.add_counts(measured, [TINY], on_cpu=False)
    assert measured[0]["programs"]["jaxrl"] == {"matmul_flops": 7}


def test_what_was_missed_is_said():
    slow = fake_result(ours=(1000, 1500, 3000))
    assert cells(report.speed_report(slow), "PPO, 8 seeds: speed")[1:] == ["≥ 3.40", "1.50 (1.00–1.50)", "NO"]
    assert claims.missed_claims(slow) and not claims.missed_claims(fake_result())
    assert not claims.missed_claims(slow | {"scale": 0.1})


def test_without_the_peer_there_are_no_claims_about_it():
    result = fake_result()
    for case in result["cases"]:
        case["programs"].pop("rejax", None)
    text = report.speed_report(result)
    assert "× Rejax" not in text and "from the cache" in text


def test_numbers_are_short():
    assert [numbers.short(x) for x in (7.126, 999.0, 9020.0, 652_300.0, 1_300_000.0)] == ["7.13", "999", "9.02k", "652k", "1.3M"]


# ---------------------------------------------------------------------------------------------------------------------- scores


def test_what_must_pass():
    by_mean = EXPERIMENTS["ppo-cartpole"]
    assert by_mean.passes([490.0, 500.0]) and not by_mean.passes([489.0, 500.0])
    by_seeds = by_mean._replace(passing_seeds=2)
    assert by_seeds.passes([495.0, 500.0, 0.0]) and not by_seeds.passes([494.0, 500.0, 0.0])
    assert by_seeds.asked == "2 of 16 seeds ≥ 495"


def test_a_control_must_not_exceed_its_threshold():
    control = EXPERIMENTS["ppo-cartpole-hidden-memoryless"]
    assert control.passes([240.0, 259.0]) and not control.passes([240.0, 261.0]) and not control.passes([500.0])
    assert control.asked == "mean ≤ 250"
    preset = EXPERIMENTS["ppo-cartpole-hidden"]
    assert {"model": preset.settings["model"], **control.settings} == preset.settings and "model" not in control.settings
    assert (control.env, control.total_steps, control.num_seeds) == (preset.env, preset.total_steps, preset.num_seeds)
    assert scores.describe(control)["at_most"] is True and "at_most" not in scores.describe(preset)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_settings_of_experiments_fit(name):
    agent = scores.build_agent(EXPERIMENTS[name])
    assert agent.env.name.endswith(EXPERIMENTS[name].env)
    assert agent.spec["settings"]["total_steps"] == 0  # the run sets it


def test_a_score_may_be_of_the_last_episodes_of_training():
    """Rows that are not steps are resets: of 3 episodes, none, 2 and 4 for one seed, and of none, none, 1 and 2 for the other."""
    rows, resets = np.array([0, 10, 20, 30, 40]), np.array([[0, 0], [3, 0], [3, 0], [5, 1], [9, 3]])
    nan = np.nan
    returns = np.array([[nan, nan], [1.0, nan], [nan, nan], [2.0, 6.0], [5.0, 3.0]])
    history = {"rows": rows, "env_steps": rows[:, None] - resets, "charts/episodic_return": returns}
    mean, episodes = scores.training_returns(history, 5)
    np.testing.assert_allclose(mean, [(4 * 5 + 2 * 2) / 6, (2 * 3 + 6) / 3])
    assert episodes == [6, 3]  # the other seed has no more
    pong = EXPERIMENTS["ppo-pong"]
    assert pong.asked == "mean ≥ -10 in the last 100 episodes of training" and scores.describe(pong)["last_episodes"] == 100
    assert not {"last_episodes", "run"} & scores.describe(EXPERIMENTS["ppo-cartpole"]).keys()


def test_intervals():
    assert scores.bootstrap_interval(np.full(4, 500.0)) == [500.0, 500.0]
    values = np.random.default_rng(1).normal(100, 10, 200)
    low, high = scores.bootstrap_interval(values)
    half = 1.96 * values.std() / math.sqrt(200)
    assert abs(low - (values.mean() - half)) < 0.3 and abs(high - (values.mean() + half)) < 0.3


@pytest.mark.slow
def test_an_interrupted_experiment_goes_on_bit_for_bit(tmp_path, monkeypatch):
    settings = {"num_envs": 2, "rollout_length": 8, "num_epochs": 1, "anneal": True}
    experiment = Experiment("tiny", "make_ppo", "CartPole-v1", settings, 160, 2, 1e9, episodes=4)
    out, work = tmp_path / "out", tmp_path / "work"
    true_run = jaxrl.run

    def killed(*args, **settings):
        def kill(chunk):
            if chunk.iteration == 4:
                raise KeyboardInterrupt

        return true_run(*args, **settings, checkpoint_every=1e-6, on_chunk=kill)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(jaxrl, "run", killed)
        scores.run_experiment(experiment, out, work, quiet=True)
    assert not out.exists() and (work / "tiny" / "checkpoints").exists()
    with pytest.raises(FileExistsError, match="eval_every"):
        scores.run_experiment(experiment._replace(total_steps=320), out, work, quiet=True)
    resumed = scores.run_experiment(experiment, out, work, quiet=True)
    whole = scores.run_experiment(experiment, tmp_path / "other", work, quiet=True)
    for name in ("scores", "history", "mean", "interval", "total_steps"):
        assert resumed[name] == whole[name], name
    assert len(whole["scores"]) == 2 and not whole["passed"] and whole["train_seconds"] > 0
    assert np.all(np.diff(whole["history"]["env_steps"], axis=0) > 0)
    assert json.loads((out / "tiny.json").read_text()) == resumed
    pictures.draw([whole], tmp_path / "tiny.png")
    assert (tmp_path / "tiny.png").stat().st_size > 1000
    assert not (work / "tiny").exists()


def test_a_finished_experiment_is_not_run_again(tmp_path, monkeypatch):
    experiment = Experiment("tiny", "make_ppo", "CartPole-v1", {}, 160, 2, 0)
    done = {"experiment": scores.describe(experiment), "mean": 3.0}
    (tmp_path / "tiny.json").write_text(json.dumps(done))

    def train(*args):
        raise RuntimeError("trained")

    monkeypatch.setattr(scores, "train_and_evaluate", train)
    assert scores.run_experiment(experiment, tmp_path, tmp_path / "work", quiet=True) == done
    with pytest.raises(RuntimeError, match="trained"):
        scores.run_experiment(experiment._replace(total_steps=320), tmp_path, tmp_path / "work", quiet=True)
    with pytest.raises(RuntimeError, match="trained"):
        scores.run_experiment(experiment, tmp_path, tmp_path / "work", force=True, quiet=True)
