"""Machinery of the benchmarks: command line, workers, programs, tables. The measured values are not tested here."""

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest

from benchmarks import cases, claims, kernels, machine, peer, protocol, report, speed, summary, thin
from benchmarks.__main__ import documents, main
from benchmarks.jaxrl_side import make_agent, make_program, make_random_agent, updates_alone
from benchmarks.pauses import PauseWatch
from benchmarks.protocol import ROOT, Worker, WorkerError, clean_environment
from benchmarks.worker import Session, count_launches
from jaxrl.agent import state_shapes
from jaxrl.metrics import to_floats
from jaxrl.runtime.system.cores import usable_cores
from jaxrl.runtime.trainers import device_layout

pytestmark = pytest.mark.expensive(50)

TINY = cases.Case(
    "tiny", "Tiny", "ppo", "ppo", cases.PPO | {"num_envs": 2, "rollout_length": 8}, 160, num_seeds=2, runs_per_section=2
)

# ---------------------------------------------------------------------------------------------------------------- command line


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ([], 0, "scores"),
        (["scores", "ppo-cartpol"], 2, "Did you mean 'ppo-cartpole'?"),
        (["offline", "--only", "dt"], 2, "'iql'"),
        (["speed", "--only", "td3"], 2, "'ppo'"),
        (["speed", "--without-peer", "rlax"], 2, "'sbx'"),
        (["speed", "--repeats", "0"], 2, "at least 1"),
        (["speed", "--scale", "2"], 2, "at most 1"),
        (["table", "--out", "/no/such/folder"], 2, "python -m benchmarks speed"),
    ],
)
def test_command_lines_without_a_measurement(args, code, message, capsys):
    try:
        found = main(args)
    except SystemExit as exit_:
        found = exit_.code
    assert found == code and message in "".join(capsys.readouterr())


def test_kernels_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr(kernels, "count", lambda given: {x.name: {"row": 50, "update": 250.5, "iteration": 407} for x in given})
    assert main(["kernels", "--only", "dqn"]) == 0
    shown = capsys.readouterr().out
    assert cells(shown, "DQN, buffer 1M")[1:] == ["50", "250.5", "407"] and "PPO" not in shown


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n", "AMD EPYC (family 25, model 17)"),
        ("cpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Intel Xeon 8175M\n", "Intel Xeon 8175M"),
        ("model name\t: ARM\n", "ARM"),
    ],
)
def test_processors_are_told_apart(cpuinfo, name):
    assert machine.cpu_model(cpuinfo) == name


# --------------------------------------------------------------------------------------------------------------------- workers

WORKER = """
import time
from benchmarks.protocol import serve
def add(a, b):
    print("stray output")
    return {"sum": a + b}
def die():
    raise OSError("out of luck")
def hang():
    time.sleep(60)
serve({"add": add, "die": die, "hang": hang})
"""


def test_a_worker_answers_until_it_dies(tmp_path):
    with Worker([sys.executable, "-c", WORKER], clean_environment(tmp_path)) as worker:
        assert worker.ask("add", a=1, b=2) == {"sum": 3}
        with pytest.raises(WorkerError, match=r"ended with code 1 at 'die'") as error:
            worker.ask("die")
    assert "stray output" in str(error.value) and "OSError: out of luck" in str(error.value)


def test_a_worker_that_does_not_answer_is_killed(tmp_path, monkeypatch):
    with Worker([sys.executable, "-c", WORKER], clean_environment(tmp_path)) as worker:
        assert worker.ask("add", a=1, b=2) == {"sum": 3}
        monkeypatch.setattr(protocol, "ANSWER_SECONDS", 0.1)
        with pytest.raises(WorkerError, match=r"did not answer 'hang' within 0\.1 s, and was killed"):
            worker.ask("hang")


def test_workers_inherit_no_settings_of_jax(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    environment = clean_environment(tmp_path)
    assert not {"JAX_NUM_CPU_DEVICES", "XLA_FLAGS"} & environment.keys()
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
    speed.time_in_turns(keys, 2, workers, programs, PauseWatch(sleep=lambda _: None))
    assert [name for op, name, _ in log if op == "train"] == ["updates", "jaxrl", "rejax"] * 3
    assert {name for op, name, arguments in log if op == "evaluate" or arguments["keep"]} == {"jaxrl", "rejax"}
    assert [arguments["keep"] for op, name, arguments in log if (op, name) == ("train", "jaxrl")] == [False, True, True]
    assert len({arguments["first_seed"] for op, _, arguments in log if op == "train"}) == 3
    assert len(programs["tiny"]["rejax"]["sections"]) == 2 and programs["tiny"]["rejax"]["returns"] == [1.0]


def test_groups_that_were_done_are_kept(tmp_path, monkeypatch, capsys):
    measured = []

    def measure(given, keys, *_, **__):
        measured.append(given[0].group)
        if len(measured) == 3:
            raise KeyboardInterrupt
        return [case._asdict() | {"programs": {"jaxrl": {}, "random": {}}} for case in given]

    counted = {"count_flops": {"matmul_flops": 7}, "count": {"row": 1}, "time_products": {"update_product_seconds": 2}}
    for name, numbers in counted.items():
        monkeypatch.setattr(kernels, name, lambda given, numbers=numbers: {case.name: numbers for case in given})
    monkeypatch.setattr(kernels, "machine_rates", lambda: {"matmul_flops_per_second": 1.0, "kernel_seconds": 1e-7})
    monkeypatch.setattr(speed, "find_gpu", lambda: None)
    monkeypatch.setattr(speed, "measure", measure)
    assert main(["speed", "--without-peer", "--out", str(tmp_path)]) == 130
    assert measured == ["ppo", "dqn", "ppo-recurrent"] and "--only measures the others" in capsys.readouterr().err
    speed.run(["ppo-minatar"], out=tmp_path, without=["rejax"])
    found = summary.read_speed(tmp_path)
    assert [result["group"] for result in found] == ["ppo", "dqn", "ppo-minatar"] and found[0]["kernel_seconds"] == 1e-7
    ours = {"matmul_flops": 7, "update_product_seconds": 2, "kernels": {"row": 1}}
    assert found[0]["cases"][0]["programs"] == {"jaxrl": ours, "random": {}}


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
    assert count_launches([gpu, SimpleNamespace(name="/host:CPU", lines=[line("Stream of thought", 7)])]) == 7


# -------------------------------------------------------------------------------------------------------------------- programs


@pytest.mark.slow
def test_a_program_trains_from_its_seeds_and_is_evaluated():
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
    program = make_program(TINY, "random")
    assert program.compile()[1] == 0
    _, steps = program.train(program.prepare(np.arange(2)))
    assert 0.8 * 320 < steps < 320  # episodes of about 22 steps, each with a reset row

    agent = make_random_agent("Pendulum-v1", 4, 2)
    state = agent.init(jax.random.key(0))
    act = partial(agent.algorithm.act, agent.algorithm.policy(state.learner), (), state.actor.input, np.arange(4))
    actions = jax.vmap(lambda key: act(key, explore=True)[1])(jax.random.split(jax.random.key(1), 50))
    assert actions.shape == (50, 4, 1) and -2 <= actions.min() < -1.8 and 1.8 < actions.max() <= 2


@pytest.mark.slow
def test_the_updates_alone_are_those_of_training(monkeypatch):
    """Also on the devices that training would use."""
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
    states, steps = shared.train(shared.prepare(np.array([3], np.uint32)))
    assert steps == 16
    leaf = jax.tree.leaves(states.actor.rows)[0]
    assert len(leaf.sharding.device_set) == min(len(jax.devices()), usable_cores(), 2)
    alone_params = jax.tree.map(lambda x: x[0], states.learner.params)
    chex.assert_trees_all_close(trained.learner.params, alone_params, atol=1e-5)


def test_a_warmup_that_is_not_timed_does_not_count():
    settings = cases.DQN | {"num_envs": 2, "buffer_size": 64, "batch_size": 16, "learning_starts": 32}
    program = make_program(cases.Case("tiny", "Tiny", "dqn", "dqn", settings, 80, times_warmup=False), "jaxrl")
    program.compile()
    _, states = prepared = program.prepare(np.arange(1))
    assert 0 < int(states.warmup_rows[0]) <= 32
    assert 0 < program.train(prepared)[1] <= program.total_steps - 32


@pytest.mark.slow
def test_all_seeds_on_one_device_learn_what_they_do_on_several():
    params, case = [], TINY._replace(total_steps=16)
    for side in ("jaxrl", "vmapped"):
        program = make_program(case, side)
        states, _ = program.train(program.prepare(np.arange(2, dtype=np.uint32)))
        params.append(jax.device_get(states.learner.params))
    assert len(program._layout[0]) == 1
    chex.assert_trees_all_close(*params, atol=1e-3)  # other rounding; weights of another seed differ by 1


def test_networks_and_updates_are_those_of_the_peers():
    """One update per environment step off-policy, at one learning rate, and as many parameters as counted by hand."""
    agents = {case.name: make_agent(case) for case in cases.CASES if case.name in ("breakout-mlp", "breakout-conv", "ppo-gru")}
    size = {name: sum(leaf.size for leaf in jax.tree.leaves(state_shapes(x).learner.params)) for name, x in agents.items()}
    torso = 10 * 10 * 4 * 64 + 64 + 64 * 64 + 64  # Rejax's: the flattened board, twice, with 3 actions and a value
    assert size["breakout-mlp"] == 2 * torso + (64 * 3 + 3) + (64 + 1)
    board = 3 * 3 * 4 * 16 + 16 + 8 * 8 * 16 * 128 + 128  # Young & Tian's: 16 channels, 128 units, and both heads on them
    assert size["breakout-conv"] == board + (128 * 3 + 3) + (128 + 1)
    seen = 2 + 2 + 1  # two of CartPole's four numbers, the previous action and the previous reward
    gates = 3 * (64 * 64 + 64) + 3 * 64 * 64  # of the input, with a bias, and of the carry
    assert size["ppo-gru"] == (seen * 64 + 64 + 64 * 64 + 64) + gates + (64 * 2 + 2) + (64 + 1)

    for case in (case for case in cases.CASES if case.group in ("sac", "crossq") or case.name == "dqn-10k"):
        agent = make_agent(case)
        settings = agent.spec["settings"]
        drawn = settings["replay_ratio"] * settings["num_envs"] * settings["rollout_length"]
        assert drawn == settings["batch_size"] * case.updates_per_iteration
        rates = {**settings, **{f"temperature.{name}": x for name, x in settings.get("temperature", {}).items()}}
        assert {rates[name] for name in rates if name.endswith("learning_rate")} == {case.settings["learning_rate"]}
        assert ("temperature.learning_rate" in rates) == (case.group in ("sac", "crossq"))
        if case.group == "sac":
            n, params = case.hidden_sizes[0], state_shapes(agent).learner.params
            both = 2 * (4 * n + n + n * n + n + n + 1)  # critics of 3 numbers and the action
            assert sum(x.size for x in jax.tree.leaves(params.critic)) == both
            assert sum(x.size for x in jax.tree.leaves(params.actor)) == 3 * n + n + n * n + n + 2 * (n + 1)


def test_what_is_measured_of_a_case():
    for case in cases.CASES:
        rejax = [] if case.no_peer else ["rejax"]
        assert [side for _, side in speed.sides_of([case])] == ["updates", "jaxrl", *rejax, *case.beside, "random"]
        alone = [side for _, side in speed.sides_of([case], without=["rejax", "plain", "sbx"])]
        assert alone == ["updates", "jaxrl", *(["vmapped"] if "vmapped" in case.beside else []), "random"]
        small, rows = cases.scaled(case, 1e-6), case.steps_per_iteration
        assert rows < small.total_steps <= max(2 * rows, 2 * case.settings.get("learning_starts", 0))
        assert cases.scaled(case, 1.0) == case and case.group in cases.GROUPS


def test_a_peer_has_our_jax_and_says_what_failed():
    for name, first in (("rejax", "rejax=="), ("sbx", "sbx-rl==")):
        requirements = peer.PEERS[name].requirements(gpu=False)
        assert requirements[0].startswith(first) and requirements[-1] == f"jax=={jax.__version__}"
        assert all("==" in line or line == "six" for line in requirements)
        assert peer.PEERS[name].python.parts[-3:] == (f".venv-{name}", "bin", "python")
    with pytest.raises(peer.PeerError, match=r"environment of SBX could not be built: .* failed\. --without-peer sbx skips it"):
        peer.PEERS["sbx"]._run(sys.executable, "-c", "raise SystemExit(1)")


# ---------------------------------------------------------------------------------------------------------------------- tables


def program(rates, compiled, returns, *, seconds=2.0, peak=300, steps=160):
    return {
        "name": "name",
        "versions": {"name": "1.2"},
        "sections": [{"seconds": seconds, "env_steps": seconds * rate, "peak_bytes": 2**20 * peak} for rate in rates],
        "compile_seconds": compiled,
        "cached_compile_seconds": [seconds / 4 for seconds in compiled],
        "parameters": 9155,
        "total_steps": steps,
        "returns": returns,
    }


def fake_result(ours=(2000, 4000, 10_000)):
    """Return a result of cases that share the same programs, but have different requirements."""
    jaxrl = program(ours, [1.0, 2.0], [490.0, 500.0])  # an iteration takes 0.1 s
    jaxrl |= {"kernels": {"row": 10.0, "update": 64.25, "iteration": 1580.0}, "matmul_flops": 1.4e9}
    programs = {
        "updates": program([1, 1], [], [], seconds=0.32, steps=32),
        "jaxrl": jaxrl | {"update_matmul_flops": 4e7, "update_product_seconds": 0.056},
        "rejax": program([1000, 1000, 2000], [2.0, 2.0], [480.0, 480.0], peak=600),
        "plain": program([1000, 1000, 2000], [2.0], [480.0, 480.0]),
        "sbx": program([500, 2000, 1000], [9.0], [470.0, 480.0]),
        "vmapped": program([1000, 2000, 5000], [9.0], [1.0]),
        "random": program([6000], [0.5], [20.0]),
    }
    programs["updates"]["sections"].append({"seconds": 0.1})  # 0.08, 0.08 and 0.025 s per iteration
    names = ("ppo-8-seeds", "sac-256", "sac-8-seeds")
    return {
        "group": "ppo",
        "command": "python -m benchmarks speed",
        "date": "2026-01-02",
        "hardware": {"cpu": "a processor", "cores": 2, "gpu": None},
        "load": 0.1,
        "scale": 1.0,
        "matmul_flops_per_second": 1e9,
        "kernel_seconds": 1e-5,
        "cases": [TINY._asdict() | {"name": name, "title": name, "programs": programs} for name in names],
    }


def cells(text, start):
    line = next(line for line in text.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    ("header", "row", "expected"),
    [
        ("of the bound", "ppo-8", ["jaxrl", "4k (2k–10k)", "66.7%", "1.50", "0.38", "300", "9,155", "160", "495.0 ± 5.0"]),
        # Paired: 2000/1000, 4000/1000, 10000/2000.
        ("jaxrl / Rejax", "ppo-8", ["4.00 (2.00–5.00)", "0.75 (0.50–1.00)", "0.75 (0.50–1.00)", "0.50", "+15.0 ± 5.0"]),
        ("jaxrl / SBX", "sac-256", ["4.00 (2.00–10.00)", "0.11 (0.11–0.11)", "0.11 (0.11–0.11)", "1.00", "+20.0 ± 7.1"]),
        ("kernels/row", "ppo-8", ["10", "64.2", "1,580", "700M (700M–700M)", "70.0%"]),
        # An iteration takes 0.1 s, its 16 updates 0.08, 0.08, 0.025 s: 1,500 of 1,580 kernels. Its 8 rows take the rest.
        ("µs/row", "ppo-8", ["20% (20%–75%)", "2.5k", "5k", "500M (500M–1.6G)", "50%", "70%", "19%", "11%"]),
        ("jaxrl, env steps/s", "ppo-8", ["a processor, 2 cores", "4k", "1k", "4", "20%", "50%"]),
        ("required", "PPO, 8 seeds: speed, × Rejax", ["≥ 3.20", "4.00 (2.00–5.00)", "yes"]),
        ("required", "PPO, 8 seeds: trace and compile from", ["≤ 0.33", "0.25 (0.25–0.25)", "yes"]),
        ("required", "SAC, 2×256: speed, × SBX", ["≥ 1.30", "4.00 (2.00–10.00)", "yes"]),
        ("required", "SAC, 2×256: its matrix", ["≥ 0.60", "0.70 (0.70–0.70)", "yes"]),
        ("required", "SAC, 2×64, 8 seeds sharded", ["≥ 1.30", "2.00 (2.00–2.00)", "yes"]),
        ("required", "SAC, 2×256: return − SBX's", ["≥ −2 s.e.", "+20.0 ± 7.1", "yes"]),
    ],
)
def test_tables_of_speed(header, row, expected):
    text = report.speed_report(fake_result()) + "\n" + summary.page_table([fake_result()], "ppo")
    assert cells(text[text.index(header) :], row)[1:] == expected


def test_each_processor_has_its_file_and_its_rows(tmp_path):
    """A later measurement of the same processor replaces the former."""
    here, there = fake_result(), fake_result(ours=(500, 500, 500)) | {"date": "2026-01-01"}
    there["hardware"] = {"cpu": "Another (R) one", "cores": 8, "gpu": None}
    for result in (here, there, here):
        path = summary.speed_path(tmp_path, result)
        path.write_text(json.dumps(result))
    assert path.name == "speed-ppo-a-processor-2-cores.json"
    found = summary.read_speed(tmp_path)
    text = summary.peer_table(found, ["ppo-8-seeds"])
    assert [line.split("|")[2].strip() for line in text.splitlines()[2:]] == ["a processor, 2 cores", "Another (R) one, 8 cores"]
    assert summary.newest(found) == [json.loads(path.read_text())]
    del here["cases"][0]["programs"]["plain"]
    assert cells(summary.peer_table([here]), "ppo-8")[-1] == "–" and cells(summary.peer_table([there]), "ppo-8")[-1] == "0.5"


def test_what_was_missed_is_said():
    slow = fake_result(ours=(1000, 1500, 3000))
    assert cells(report.speed_report(slow), "PPO, 8 seeds: speed")[1:] == ["≥ 3.20", "1.50 (1.00–1.50)", "NO"]
    assert claims.missed_claims(slow) and not claims.missed_claims(fake_result())
    assert not claims.missed_claims(slow | {"scale": 0.1})
    slow["cases"][0]["programs"].pop("rejax")  # of all cases
    text = report.speed_report(slow | {"without": ["rejax"], "kernel_seconds": None})  # as on a GPU
    assert "Not measured (`--without-peer`): Rejax." in text and "× Rejax" not in text


def test_tables_are_filled_into_their_places():
    text = "# A\n\n<!-- begin a: python -m benchmarks table -->\n\nold\n\n<!-- end -->\n\nmiddle\n"
    assert summary.fill(text, {"a": "| x |\n| y |"}) == text.replace("old", "| x |\n| y |")
    for wrong in (text + text, text.replace("begin a", "begin b")):
        with pytest.raises(ValueError, match=r"places for the tables \['[ab]'"):
            summary.fill(wrong, {"a": ""})


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
    assert len(history["env_steps"]) == thin.MAX_POINTS and history["env_steps"][0] == 1002 and history["env_steps"][-1] == 49002
    assert history["charts/episodic_return"][-1] == [123.5, 500]
    full = thin.full_history(history)
    chosen = [int(step) // 1000 for step in history["env_steps"]]
    np.testing.assert_allclose(full["charts/episodic_return"], returns[chosen], rtol=5e-4)
    np.testing.assert_allclose(full["env_steps"], steps[chosen], atol=2)
    few = thin.thin_history({"env_steps": steps[6:9], "charts/episodic_return": returns[6:9]})
    assert np.isnan(thin.full_history(few)["charts/episodic_return"][1, 1])
    nothing = thin.thin_history({"env_steps": steps[:1], "charts/episodic_return": returns[:1]})
    assert thin.full_history(nothing)["charts/episodic_return"].shape == (0, 0)
    thin.write_thin(tmp_path / "a.json", {"name": "≥", "history": history})
    assert len((tmp_path / "a.json").read_text().splitlines()) == 4
    assert json.loads((tmp_path / "a.json").read_text()) == {"name": "≥", "history": history}


def test_a_command_does_not_name_folders_of_one_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["benchmarks", "offline", "--jax-corl", str(tmp_path / "corl"), "--out", "../out"])
    assert machine.command() == "python -m benchmarks offline --jax-corl corl --out ../out"
