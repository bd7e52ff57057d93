"""``load_policy`` and ``init_from``: use of a run's policies elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.rollout.inputs import example_input
from jaxrl.runtime.checkpoint.convert_states import with_buffers, without_buffers
from jaxrl.runtime.checkpoint.manifest import CheckpointWarning, steps
from jaxrl.runtime.checkpoint.restore import read_arrays
from jaxrl.runtime.checkpoint.transfer import read_source, warm_start
from jaxrl.runtime.evaluation.load_policy import load_policies
from jaxrl.runtime.run import run
from jaxrl.runtime.trainers.fused import FusedDriver
from jaxrl.spaces.trees import describe_space, realize_space
from jaxrl.types import AgentState
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, REPRESENTATIVES, SMALL_ACTOR_CRITIC, assert_bit_equal, cartpole, small_dqn, small_ppo
from tests.helpers.hosted import hosted


class Runs(dict[str, tuple[Path, Any]]):
    """Short runs of seeds 4 and 2 on CartPole, which train when they are first asked for: ``{algorithm: (folder, states)}``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, algorithm: str) -> tuple[Path, Any]:
        folder, settings = self.folder / algorithm, {"quiet": True, "tensorboard": False}
        states, _ = run(cartpole(algorithm), 400, seeds=[4, 2], out=folder, eval_every=3, eval_episodes=4, **settings)
        self[algorithm] = folder, states
        return self[algorithm]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


# ------------------------------------------------------------------------------------------------------------------ load_policy


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", REPRESENTATIVES)
@pytest.mark.parametrize("seed", [4, 2])
def test_the_last_policy_acts_as_the_agent_does(algorithm: str, seed: int, runs: Any) -> None:
    folder, states = runs[algorithm]
    agent = cartpole(algorithm)
    policy = jaxrl.load_policy(folder, seed=seed, which="last")
    learner = jax.tree.map(lambda x: x[[4, 2].index(seed)], states.learner)
    obs = jax.random.normal(jax.random.key(1), (16, 4))
    inputs = example_input(agent.env.observation_space, agent.env.action_space)._replace(obs=obs)
    carry, played = agent.algorithm.initial_carry(16), agent.algorithm.policy(learner)
    expected = agent.algorithm.act(played, carry, inputs, jnp.arange(16), jax.random.key(0), explore=False)[1]
    np.testing.assert_array_equal(policy(np.asarray(obs)), expected)
    alone = policy(np.asarray(obs[0]))  # in the first lane, as a planner draws for each lane
    assert alone.shape == agent.env.action_space.shape and policy.seed == seed
    np.testing.assert_array_equal(alone, expected[0])


@pytest.mark.slow
@pytest.mark.parametrize("which", ["best", "last"])
def test_a_run_from_before_its_length_was_data_still_plays(which: str, runs: Any, tmp_path: Path, monkeypatch: Any) -> None:
    folder, _ = runs["dqn"]
    for there in folder.iterdir():
        (tmp_path / there.name).symlink_to(there)
    (tmp_path / "config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["agent"]["settings"]["total_steps"] = None
    (tmp_path / "config.json").write_text(json.dumps(config))

    def without_length(path: Path, **given: Any) -> Any:
        arrays, info = read_arrays(path, **given)
        return {name: x for name, x in arrays.items() if not name.endswith(".total_steps")}, info

    monkeypatch.setattr("jaxrl.runtime.evaluation.load_policy.read_arrays", without_length)
    obs = np.full(4, 0.1, np.float32)
    assert jaxrl.load_policy(tmp_path, which=which)(obs) == jaxrl.load_policy(folder, which=which)(obs)


@pytest.mark.slow
def test_the_best_policy_is_that_of_the_best_evaluation(runs: Any) -> None:
    folder, _ = runs["ppo"]
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    scores = {
        r["iteration"]: np.mean(r["evaluation/episodic_return"]) for r in records if None not in r["evaluation/episodic_return"]
    }
    best = jaxrl.load_policy(folder)
    assert scores[best.step] == max(scores.values())
    returns = next(r for r in records if r["iteration"] == best.step)["evaluation/episodic_return"]
    assert best.seed == [4, 2][int(np.argmax(returns))]
    assert repr(best).startswith(
        f"<LoadedPolicy of seed {best.seed}, greedy; best policies: iteration {best.step}, evaluation return "
    )
    assert (
        f"best: iteration {best.step}" in repr(jaxrl.load_policy(folder, which="last")) or best.step == records[-1]["iteration"]
    )


@pytest.mark.slow
def test_members_with_the_same_seed_are_all_there(tmp_path: Path) -> None:
    rates = [1e-3, 1e-4, 1e-2]
    states, history = run(
        cartpole("ppo"),
        32 * 6,
        seeds=[4, 4, 2],
        hyperparams={"learning_rate": rates},
        out=tmp_path,
        eval_every=6,
        eval_episodes=4,
        quiet=True,
        tensorboard=False,
    )
    saved = load_policies(tmp_path, which="last")
    assert saved.seeds == [4, 4, 2]
    assert_bit_equal(saved.policies.params, states.learner.params)
    pair = load_policies(tmp_path, which="last", seeds=[4])
    returns = history["evaluation/episodic_return"][-1]
    assert pair.seeds == [4, 4] and pair.returns.tolist() == returns[:2].tolist()
    for seed, rows in ((4, [0, 1]), (None, [0, 1, 2])):
        best = max(rows, key=lambda row: returns[row])
        chosen = jaxrl.load_policy(tmp_path, seed=seed)
        jax.tree.map(
            np.testing.assert_array_equal, chosen.policy.params, jax.tree.map(lambda x, r=best: x[r], saved.policies.params)
        )


@pytest.mark.slow
def test_a_damaged_last_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(
        cartpole("ppo"),
        32 * 8,
        out=folder,
        chunk_iterations=2,
        checkpoint_every=1e-6,
        eval_every=0,
        quiet=True,
        tensorboard=False,
    )
    *_, before, last = steps(folder / "checkpoints")
    array = max(
        (path for path in (folder / "checkpoints" / str(last)).rglob("*") if path.is_file()), key=lambda p: p.stat().st_size
    )
    array.write_bytes(array.read_bytes()[:-1] + b"?")
    with pytest.warns(CheckpointWarning, match=f"step {last} .* is not intact.* Using step {before} instead"):
        assert jaxrl.load_policy(folder, which="last").step == before


def test_exploring_needs_a_key_and_draws(runs: Any) -> None:
    policy = jaxrl.load_policy(runs["ppo"][0])
    obs = np.zeros((64, 4), np.float32)
    with pytest.raises(ValueError, match=r"explore=True needs a random key: pass key="):
        policy(obs, explore=True)
    assert set(policy(obs, explore=True, key=jax.random.key(0)).tolist()) == {0, 1}
    assert len(set(policy(obs).tolist())) == 1
    explorer = jaxrl.load_policy(runs["ppo"][0], explore=True, key=jax.random.key(1))
    assert explorer.explore and set(explorer(obs).tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("obs", "error", "message"),
    [
        (np.zeros(3, np.float32), ValueError, r"obs has shape \(3,\): it must be \(4,\), or \(batch, 4\)"),
        (np.zeros((2, 2, 4), np.float32), ValueError, r"obs has shape \(2, 2, 4\)"),
        (np.zeros(4, np.complex64), TypeError, "obs has dtype complex64 instead of float32"),
        (np.array(["a"] * 4), TypeError, "obs has dtype <U1"),
        ({"x": np.zeros(4)}, TypeError, r"obs must be structured as Box float32\[4\], not as \{'x': float64\[4\]\}"),
        (
            (np.zeros(4), {}),
            TypeError,
            r"obs is a tuple of 2 that cannot be converted to an array: reset returns \(obs, info\): pass only obs",
        ),
        (
            [[1.0, 2.0], [3.0]],
            TypeError,
            "obs is a list of 2 that cannot be converted to an array: its elements have different shapes",
        ),
    ],
)
def test_a_wrong_observation_is_named(obs: Any, error: type[Exception], message: str, runs: Any) -> None:
    with pytest.raises(error, match=message):
        jaxrl.load_policy(runs["ppo"][0])(obs)


def test_integers_are_taken_for_floats(runs: Any) -> None:
    policy = jaxrl.load_policy(runs["ppo"][0])
    assert policy(np.ones(4, np.int64)) == policy(np.ones(4, np.float64)) == policy(np.ones(4, np.float32))


def test_wrong_requests(runs: Any, tmp_path: Path) -> None:
    folder, _ = runs["ppo"]
    with pytest.raises(ValueError, match=r"seed=0 was not trained in .*: it has the seeds \[4, 2\]"):
        jaxrl.load_policy(folder, seed=0)
    with pytest.raises(ValueError, match=r"which='latest' is unknown"):
        jaxrl.load_policy(folder, which="latest")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(FileNotFoundError, match=r"has no best/ yet: the run saved nothing, or was not evaluated"):
        jaxrl.load_policy(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"has no checkpoints/ yet: the run saved nothing$"):
        jaxrl.load_policy(tmp_path, which="last")


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_the_states_of_a_run_come_back_from_its_folder(algorithm: str, runs: Any) -> None:
    """As in docs/howto/resume.md, for a custom loop."""
    folder, states = runs[algorithm]
    keys = jax.random.split(jax.random.key(0), 2)
    restored, info = jaxrl.restore(folder, target=jax.eval_shape(jax.vmap(cartpole(algorithm).init), keys))
    assert_bit_equal(restored, states)
    assert info.step == int(states.iteration[0])


def test_a_run_that_was_not_evaluated_gives_its_last_policy_and_says_so(runs: Any, tmp_path: Path) -> None:
    folder, _ = runs["ppo"]
    for name in ("config.json", "records.jsonl", "checkpoints"):
        (tmp_path / name).symlink_to(folder / name)
    with pytest.warns(UserWarning, match=r"has no best/, because it was not evaluated: using the policy of its last checkpoint"):
        policy = jaxrl.load_policy(tmp_path)
    assert policy.step == jaxrl.load_policy(folder, which="last").step
    obs = np.full(4, 0.1, np.float32)
    assert policy(obs) == jaxrl.load_policy(folder, seed=policy.seed, which="last")(obs)


def test_a_seed_that_diverged_is_not_chosen(runs: Any, tmp_path: Path) -> None:
    """It is frozen in its state from before, which may be that of its first iteration."""
    folder, _ = runs["ppo"]
    for name in ("config.json", "best", "checkpoints"):
        (tmp_path / name).symlink_to(folder / name)
    best = jaxrl.load_policy(folder, which="last")
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    lost = [seed == best.seed for seed in (4, 2)]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record | {"diverged": lost}) + "\n" for record in records))
    other = jaxrl.load_policy(tmp_path, which="last")
    assert {other.seed, best.seed} == {4, 2} and "diverged" not in other.about
    asked = jaxrl.load_policy(tmp_path, seed=best.seed, which="last")
    assert f"seed {best.seed} diverged, and this is its policy from before" in asked.about


def test_the_environment_is_not_needed(tmp_path: Path, runs: Any) -> None:
    """A policy for an environment that cannot be built here."""
    folder, _ = runs["ppo"]
    for name in ("config.json", "records.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "best").symlink_to(folder / "best")
    config = json.loads((tmp_path / "config.json").read_text())
    config["agent"]["env"] = "nobackend:Nothing-v0"
    (tmp_path / "config.json").write_text(json.dumps(config))
    obs = np.full(4, 0.1, np.float32)
    assert jaxrl.load_policy(tmp_path)(obs) == jaxrl.load_policy(folder)(obs)


@pytest.mark.slow
def test_a_recurrent_policy_remembers_until_it_is_reset(tmp_path: Path) -> None:
    agent = small_ppo(probes.memory(), model=RECURRENT)
    run(agent, 64, out=tmp_path, quiet=True, tensorboard=False)
    policy = jaxrl.load_policy(tmp_path)
    space = policy.observation_space
    obs = [np.asarray(space.sample(), np.float32) for _ in range(3)]
    carry, act = agent.algorithm.initial_carry(1), agent.algorithm.act
    inputs = example_input(space, policy.action_space)
    expected = []
    for x in obs:
        inputs = inputs._replace(obs=jnp.asarray(x)[None])
        carry, action, _ = act(policy.policy, carry, inputs, jnp.arange(1), jax.random.key(0), explore=False)
        inputs = inputs._replace(prev_action=action, prev_reward=jnp.full(1, 0.5), is_first=jnp.zeros(1, bool))
        expected.append(int(action[0]))
    for _ in range(2):
        assert [int(policy(x, prev_reward=0.5)) for x in obs] == expected
        policy.reset()


@pytest.mark.slow
def test_policies_of_host_environments_load(tmp_path: Path) -> None:
    agent = small_dqn(hosted(probes.truncation(5)))
    states, _ = run(agent, 120, seeds=[7, 8], out=tmp_path, eval_episodes=2, quiet=True, tensorboard=False)
    for which in ("best", "last"):
        policy = jaxrl.load_policy(tmp_path, seed=8, which=which)
        assert policy.policy.params.keys() == states.learner.params.keys()


# -------------------------------------------------------------------------------------------------------------------- init_from


def test_a_run_begins_with_what_another_learnt(runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, states = runs["ppo"]
    seen = []

    def look(chunk: Any) -> None:
        seen.append(jax.device_get(chunk.states.learner.params))

    agent = small_ppo("CartPole-v1", learning_rate=1e-30)
    ask = {"seeds": [4, 2], "init_from": folder, "on_chunk": look, "eval_every": 0}
    run(agent, 32, **ask, init_which="last")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), seen[0], jax.device_get(states.learner.params))
    last = steps(folder / "checkpoints")[-1]
    assert f"ppo' (last checkpoint, iteration {last}): took 8 of 8 arrays\n" in capsys.readouterr().out

    run(agent, 32, **ask)
    best = load_policies(folder)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), seen[1], best.policies.params)
    assert f"ppo' (best policies, iteration {best.step}): took 8 of 8 arrays\n" in capsys.readouterr().out


def test_seeds_take_in_turn_and_targets_follow_the_best(runs: Any) -> None:
    """Three seeds from a run of two. The best are policies without target networks; whole states have target networks."""
    folder, states = runs["dqn"]
    learnt = cartpole("dqn").algorithm.transferable_fields
    fresh = jax.vmap(cartpole("dqn").init)(jax.random.split(jax.random.key(0), 3))
    taken, report = warm_start(fresh, read_source(folder), learnt)
    there = load_policies(folder)
    assert "(2 members for 3 seeds: seed i, from 0, takes member i % 2)" in report and "newly initialised" not in report
    for params in (taken.learner.params, taken.learner.target_params):
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[[0, 1, 0]]), params, there.policies.params)

    states = jax.device_get(states._replace(actor=(), key=()))
    other = jax.tree.map(lambda x: x + 1, states.learner.target_params)
    taken, _ = warm_start(fresh, read_source(states._replace(learner=states.learner._replace(target_params=other))), learnt)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[[0, 1, 0]]), taken.learner.target_params, other)


def test_a_source_has_no_effect_on_a_run_that_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent, where = cartpole("ppo"), {"out": tmp_path / "run", "eval_every": 0, "tensorboard": False}
    run(agent, 32, quiet=True, **where)
    run(agent, 32, init_from=tmp_path / "none", **where)
    note = "init_from has no effect, since the run is resumed: it began from new parameters\n"
    assert note in capsys.readouterr().out
    run(agent, 32, **where)
    assert "init_from" not in capsys.readouterr().out


def test_a_wrong_source_is_named_before_anything_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = cartpole("ppo")
    run(agent, 32, out=tmp_path / "unseen", eval_every=0, quiet=True, tensorboard=False)
    monkeypatch.setattr(FusedDriver, "init", lambda *_: pytest.fail("compiled"))
    with pytest.raises(ValueError, match=r"init_which='bets' is unknown. Did you mean 'best'\?"):
        run(agent, 32, init_from=tmp_path / "unseen", init_which="bets", quiet=True)
    with pytest.raises(FileNotFoundError, match=r"unseen' has no best/ yet: .*; init_which='last' uses its last checkpoint"):
        run(agent, 32, init_from=tmp_path / "unseen", quiet=True)
    with pytest.raises(FileNotFoundError, match="no checkpoint to restore"):
        run(agent, 32, init_from=tmp_path / "none", quiet=True)


def test_what_does_not_fit_is_new_and_named(runs: Any) -> None:
    """CartPole has two actions, Acrobot three and other observations: only the hidden layers in the middle fit."""
    _, states = runs["ppo"]
    agent = small_ppo("Acrobot-v1", model=SMALL_ACTOR_CRITIC)
    fresh = jax.vmap(agent.init)(jax.random.split(jax.random.key(0), 3))
    taken, report = warm_start(fresh, read_source(states), agent.algorithm.transferable_fields)
    there, here = states.learner.params["params"], taken.learner.params["params"]
    np.testing.assert_array_equal(here["value"]["kernel"], there["value"]["kernel"][np.array([0, 1, 0])])
    np.testing.assert_array_equal(
        here["policy"]["logits"]["kernel"], fresh.learner.params["params"]["policy"]["logits"]["kernel"]
    )
    assert "newly initialised:" in report and "float32[6,8] (there float32[4,8])" in report
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y), taken.learner.opt_state, fresh.learner.opt_state)


def test_nothing_that_fits_is_an_error(runs: Any) -> None:
    _, states = runs["dqn"]
    fresh = jax.vmap(cartpole("ppo").init)(jax.random.split(jax.random.key(0), 2))
    with pytest.raises(
        ValueError, match=r"init_from=the given states: nothing in it fits this agent. Without a match: .learner.params"
    ):
        warm_start(fresh, read_source(states), ("params", "statistics"))


def test_what_is_taken_is_what_the_algorithm_declares(runs: Any) -> None:
    """By whole names of fields. A field that was not saved starts from the params."""
    _, states = runs["ppo"]

    class Learner(NamedTuple):
        params: Any
        slow: Any
        params_of_another_kind: Any

    there = states.learner.params
    fresh = AgentState(Learner(*[jax.tree.map(jnp.zeros_like, there)] * 3), (), (), (), states.iteration, ())
    taken = warm_start(fresh, read_source(states), ("params", "slow"))[0].learner
    for params in taken[:2]:
        jax.tree.map(np.testing.assert_array_equal, params, there)
    assert not any(x.any() for x in jax.tree.leaves(taken.params_of_another_kind))
    states = fresh._replace(learner=taken)
    assert without_buffers(states, ("slow",)).learner.slow == ()
    assert_bit_equal(with_buffers(states, fresh, ("slow",)).learner.slow, fresh.learner.slow)


# ----------------------------------------------------------------------------------------------------------------------- spaces


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=-2),
        spaces.Box(-1, 1, (3,), np.float32),
        spaces.Box(np.array([-np.inf, 0.1], np.float32), np.array([3.5, np.inf], np.float32)),
        spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
        spaces.Box(0, 255, (4, 4, 3), np.uint8),
        spaces.Box(0.0, 1.0, (), np.float32),
        spaces.MultiBinary((2, 3)),
        spaces.MultiBinary(4),
        spaces.MultiDiscrete([3, 4], start=[1, 0]),
        spaces.MultiDiscrete([[3, 4], [5, 6]]),
        spaces.Dict({"a": spaces.Discrete(2), "action_mask": spaces.MultiBinary(3)}),
        spaces.Tuple([spaces.Discrete(2), spaces.Dict({"x": spaces.Box(-1, 1, (1,))})]),
    ],
)
def test_spaces_survive_json(space: spaces.Space) -> None:
    data = json.loads(json.dumps(describe_space(space), allow_nan=False))
    back = realize_space(data)
    assert back == space and back.dtype == space.dtype and back.shape == space.shape


def test_a_space_of_ones_own_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be described"):
        describe_space(spaces.Text(4))
