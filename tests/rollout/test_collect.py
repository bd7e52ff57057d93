"""Rollouts against a plain Python loop over one environment at a time, and changes that must not affect them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import make_env
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.metrics import to_floats
from jaxrl.rollout.autoreset import expand_mask
from jaxrl.rollout.collect import collect, concat_rollouts, init_actor
from jaxrl.rollout.env_batches import fold_each, params_axes, reset_done_envs
from jaxrl.types import ActorState, Algorithm, Env, Policy, Rollout, TimeStep
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, small_dqn, small_ppo, to_numpy

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs once or twice, so compiling it is the cost."""
POLICY = Policy((), (), (), jnp.int32(5))
ROWS, ROLLOUTS, NUM_ENVS = 9, 2, 3


# ------------------------------------------------------------------------------------------------------------- collected rows


class CrowdedState(NamedTuple):
    key: Any
    time: Any


def crowded() -> Env:
    """Environment with Dict observations, a key in its state, integer rewards, info, and ends of all three kinds.

    Every third episode length ends terminated, every second truncated, so at 6 both flags are true.
    """

    def observe(state: CrowdedState) -> Any:
        return {"x": jax.random.uniform(state.key, (2,)), "time": state.time}

    def reset(key: Any, params: Any) -> Any:
        own_key, start_key = jax.random.split(key)
        state = CrowdedState(own_key, jax.random.randint(start_key, (), 0, 6))
        return state, observe(state)

    def step(key: Any, state: CrowdedState, action: Any, params: Any) -> Any:
        state = CrowdedState(jax.random.fold_in(key, action), state.time + 1)
        lucky = jax.random.bernoulli(key, 0.4)
        ended, cut = lucky & (state.time % 3 == 0), lucky & (state.time % 2 == 0)
        return state, TimeStep(observe(state), state.time - action, ended, cut, {"lucky": lucky})

    inside = {"x": spaces.Box(0, 1, (2,), np.float32), "time": spaces.Box(0, 1000, (), np.int32)}
    return Env(reset, step, spaces.Dict(inside), spaces.Discrete(3))


ENVS: dict[str, Callable[[], tuple[Env, Any]]] = {
    "truncation, one limit per environment": lambda: (probes.truncation(), probes.Cut(np.array([1, 3, 100]))),
    "memory": lambda: (probes.memory(), ()),
    "target action": lambda: (probes.target_action(), ()),
    "crowded": lambda: (crowded(), ()),
    "crowded with a limit": lambda: (crowded()._replace(max_episode_steps=2), ()),
    "CartPole": lambda: ((env := make_env("CartPole-v1", max_steps_in_episode=8)), env.params),
}


def act(env: Env, env_id: Any, key: Any) -> Any:
    """Draw a random action of environment ``env_id``, unbatched."""
    key = jax.random.fold_in(key, env_id)
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        return jax.random.randint(key, (), 0, int(space.n))
    return jax.random.uniform(key, space.shape, minval=0.0, maxval=4.0)


def random_algorithm(env: Env) -> Algorithm:
    """Algorithm with random actions. The carry counts the rows of an episode, and the extras hold the policy's input."""

    def act_all(policy: Policy, carry: Any, inputs: Any, env_id: Any, key: Any, *, explore: bool) -> Any:
        carry = jnp.where(inputs.is_first, 0, carry) + 1
        return carry, jax.vmap(lambda i: act(env, i, key))(env_id), {"saw": inputs.prev_reward, "carry": carry}

    nothing: Any = None
    return Algorithm(nothing, nothing, act_all, nothing, initial_carry=lambda batch: jnp.zeros(batch, jnp.int32))


def collect_all(env: Env, num_envs: int = NUM_ENVS, first_id: int = 0) -> Callable[..., Any]:
    """(key, env_params) -> (ActorState, [Rollout], [Metrics]): ``ROLLOUTS`` rollouts, one after another."""
    algorithm = random_algorithm(env)
    env_id = first_id + jnp.arange(num_envs, dtype=jnp.int32)

    def one(actor: ActorState, key: Any, env_params: Any) -> Any:
        actor, rollout, metrics = collect(algorithm, env, POLICY, actor, env_params, env_id, key, ROWS)
        return actor, (rollout, metrics)

    def all_of_them(key: Any, env_params: Any) -> Any:
        keys = jax.random.split(key, ROLLOUTS + 1)
        actor = init_actor(algorithm, env, keys[0], env_id, env_params)
        return jax.lax.scan(lambda actor, key: one(actor, key, env_params), actor, keys[1:])

    return all_of_them


fold = jit(jax.random.fold_in)


def play(env: Env, params: Any, i: int, key: Any) -> list[dict[str, Any]]:
    """Return the rows of environment i, one by one, as documented in ``jaxrl.types``."""
    reset, step, choose = jit(env.reset), jit(env.step), jit(partial(act, env))
    keys = jax.random.split(key, ROLLOUTS + 1)
    state, obs = reset(fold(keys[0], i), params)
    nothing = jax.tree.map(jnp.zeros_like, choose(i, keys[0]))
    seen = {"obs": obs, "prev_action": nothing, "prev_reward": 0.0, "is_first": True}
    rows, done, count = [], False, 0
    total, length = 0.0, 0
    for iteration_key in keys[1:]:
        for act_key, step_key, reset_key in jax.random.split(iteration_key, (ROWS, 3)):
            action = choose(i, act_key)
            count = 1 if seen["is_first"] else count + 1
            row = {**seen, "action": action, "carry": count}
            if done:
                state, obs = reset(fold(reset_key, i), params)
                row |= {"valid": False, "reward": 0.0, "terminated": False, "truncated": False}
                seen = {"obs": obs, "prev_action": nothing, "prev_reward": 0.0, "is_first": True}
                total, length, done = 0.0, 0, False
            else:
                state, reached = step(fold(step_key, i), state, action, params)
                total, length = total + float(reached.reward), length + 1
                cut = bool(reached.truncated) or (env.max_episode_steps is not None and length >= env.max_episode_steps)
                ended = bool(reached.terminated)
                row |= {"valid": True, "reward": float(reached.reward), "terminated": ended, "truncated": cut and not ended}
                row["info"] = reached.info
                seen = {"obs": reached.obs, "prev_action": action, "prev_reward": float(reached.reward), "is_first": False}
                done = ended or cut
            rows.append({**row, "next_obs": seen["obs"], "done": done, "return": total, "length": length})
    return rows


def column(tree: Any, *index: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x)[index], tree)


@pytest.mark.parametrize("name", ENVS)
def test_rollouts_are_the_loop(name: str) -> None:
    env, params = ENVS[name]()
    actor, (rollouts, metrics) = to_numpy(jit(collect_all(env))(KEY(), params))
    axes = jax.tree.leaves(params_axes(env, params), is_leaf=lambda x: x is None)
    finished: list[list[tuple[float, int]]] = [[] for _ in range(ROLLOUTS)]
    kinds = set()
    for i in range(NUM_ENVS):
        leaves, structure = jax.tree.flatten(params)
        own = structure.unflatten([x if axis is None else x[i] for x, axis in zip(leaves, axes, strict=True)])
        rows = play(env, own, i, KEY())
        for n, row in enumerate(rows):
            r, t = divmod(n, ROWS)
            got: Rollout = jax.tree.map(lambda x, r=r: x[r], rollouts)
            now, after = column(got.inputs, t, i), column(got.inputs, t + 1, i)
            expected = [row[name] for name in ("prev_action", "prev_reward", "is_first", "action", "reward")]
            expected += [row[name] for name in ("terminated", "truncated", "valid", "prev_reward", "carry")]
            actual = [*now[1:], got.action[t, i], got.reward[t, i], got.terminated[t, i], got.truncated[t, i], got.valid[t, i]]
            actual += [got.extras["saw"][t, i], got.extras["carry"][t, i]]
            assert set(got.info) == ({"lucky"} if "crowded" in name else set())
            if row["valid"]:
                expected += row["info"].values()
                actual += column(got.info, t, i).values()
            for x, y in zip(actual, expected, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-6, err_msg=f"environment {i}, row {n}")
            for x, y in zip(jax.tree.leaves((now.obs, after.obs)), jax.tree.leaves((row["obs"], row["next_obs"])), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6, err_msg=f"environment {i}, row {n}")
            if row["done"]:
                finished[r].append((row["return"], row["length"]))
            kinds |= {("terminated", row["terminated"]), ("truncated", row["truncated"]), ("valid", row["valid"])}
        assert (actor.done[i], actor.episode.episodic_length[i]) == (rows[-1]["done"], rows[-1]["length"])
        assert actor.episode.episodic_return[i] == pytest.approx(rows[-1]["return"], rel=1e-5)
    assert ("valid", False) in kinds  # an episode did end

    for r in range(ROLLOUTS):
        closed = to_floats(jax.tree.map(lambda x, r=r: x[r], metrics))
        returns, lengths = zip(*finished[r], strict=True)
        expected = {"episodic_return": np.mean(returns), "episodic_length": np.mean(lengths)}
        expected |= {"episodic_return_min": min(returns), "episodic_return_max": max(returns)}
        expected |= {"valid_rows": rollouts.valid[r].mean()}
        assert closed == {f"charts/{name}": pytest.approx(value, rel=1e-5) for name, value in expected.items()}
        assert metrics["charts/episodic_return"].count[r] == len(finished[r])
        assert metrics["charts/valid_rows"].sum[r] == rollouts.valid[r].sum()
        assert metrics["charts/valid_rows"].count[r] == ROWS * NUM_ENVS


@cache
def crowd(num_envs: int, first_id: int = 0) -> Rollout:
    return jit(collect_all(crowded(), num_envs, first_id))(KEY(), ())[1][0]


@pytest.mark.slow
def test_the_crowded_environment_ends_in_all_ways() -> None:
    """Otherwise the loop above would prove less. In particular, both flags are set together in some row."""
    rollouts = crowd(4)
    assert rollouts.terminated.any() and rollouts.truncated.any()
    assert not (rollouts.terminated & rollouts.truncated).any()
    assert (rollouts.terminated & (rollouts.inputs.obs["time"][:, 1:] % 6 == 0)).any()


def test_types_and_shapes_of_a_rollout() -> None:
    actor, (rollout, _) = jax.eval_shape(collect_all(crowded()), jax.eval_shape(KEY), ())
    assert all(x.shape[0] == NUM_ENVS for x in jax.tree.leaves(actor))
    assert rollout.reward.dtype == jnp.float32 and not rollout.reward.weak_type
    assert {x.dtype for x in (rollout.valid, rollout.terminated, rollout.truncated, rollout.inputs.is_first)} == {jnp.dtype(bool)}
    assert rollout.inputs.obs["x"].shape == (ROLLOUTS, ROWS + 1, NUM_ENVS, 2)
    assert rollout.action.shape == (ROLLOUTS, ROWS, NUM_ENVS)
    assert (rollout.env_id.dtype, rollout.version.dtype) == (jnp.int32, jnp.int32)


def test_the_first_row_of_a_rollout_takes_up_where_the_last_one_ended() -> None:
    """The carry is the one from before row 0. Version and ids are passed on."""
    _, (rollouts, _) = jit(collect_all(probes.truncation()))(KEY(), probes.Cut())
    assert_bit_equal(*(jax.tree.map(lambda x, i=i: x[i], rollouts.inputs) for i in ((1, 0), (0, ROWS))))
    np.testing.assert_array_equal(rollouts.carry, [[0] * NUM_ENVS, rollouts.extras["carry"][0, -1]])
    np.testing.assert_array_equal(rollouts.version, np.full((ROLLOUTS, NUM_ENVS), 5))
    np.testing.assert_array_equal(rollouts.env_id[1], jnp.arange(NUM_ENVS))


# ------------------------------------------------------------------------------------------------------- changes without effect


@pytest.mark.slow
def test_an_environment_does_not_notice_the_others() -> None:
    """Two environments, the first two of four, and the last two of four as a second device has them."""
    four, two, last_two = crowd(4), crowd(2), crowd(2, first_id=2)
    for r in range(ROLLOUTS):
        assert_bit_equal(concat_rollouts([take(two, r), take(last_two, r)]), take(four, r))
    assert (np.asarray(four.action[..., 0]) != np.asarray(four.action[..., 1])).any()


def take(rollouts: Rollout, r: int) -> Rollout:
    return jax.tree.map(lambda x: x[r], rollouts)


# ------------------------------------------------------------------------------------------------------------------ joined rows


def test_joined_rollouts_stay_in_numpy_and_may_be_of_several_sizes_and_versions() -> None:
    parts = [to_numpy(take(crowd(2), 0))._replace(version=np.int32([1, 1])), to_numpy(take(crowd(4), 0))]
    whole = concat_rollouts(parts)
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(whole))
    assert (whole.reward.shape, whole.inputs.obs["x"].shape) == ((ROWS, 6), (ROWS + 1, 6, 2))
    np.testing.assert_array_equal(whole.version, [1, 1, 5, 5, 5, 5])
    np.testing.assert_array_equal(whole.env_id, [0, 1, 0, 1, 2, 3])
    assert_bit_equal(concat_rollouts(parts[:1]), parts[0])


def test_rollouts_that_do_not_fit_are_not_joined() -> None:
    one = take(crowd(2), 0)
    for other, message in (
        (
            one._replace(action=one.action[:-1]),
            r"rollouts\[1\]\.action is int32\[8, 2\], but that of rollouts\[0\] is int32\[9, 2\]",
        ),
        (one._replace(info={}), r"rollouts\[1\]\.info is \{\}, but that of rollouts\[0\] is \{'lucky': bool\[9, 2\]\}"),
        (one._replace(reward=one.valid), r"rollouts\[1\]\.reward is bool\[9, 2\], but that of rollouts\[0\] is float32\[9, 2\]"),
    ):
        with pytest.raises(ValueError, match=message):
            concat_rollouts([one, other])
    with pytest.raises(ValueError, match="at least one rollout"):
        concat_rollouts([])


# ------------------------------------------------------------------------------------------------------------- refused arguments


def test_ids_and_flags_are_one_number_per_environment() -> None:
    env, algorithm = probes.constant_reward(), random_algorithm(probes.constant_reward())
    actor = jit(lambda: init_actor(algorithm, env, KEY(), jnp.arange(3), ()))()
    for call in (
        lambda: init_actor(algorithm, env, KEY(), jnp.arange(3)[None], ()),
        lambda: collect(algorithm, env, POLICY, actor, (), jnp.arange(2), KEY(), 1),
        lambda: reset_done_envs(env, jnp.zeros((3, 1), bool), KEY(), jnp.arange(3), actor.env_state, actor.input.obs, ()),
    ):
        with pytest.raises(AssertionError):
            jax.eval_shape(call)


@pytest.mark.slow
def test_a_rollout_is_the_same_under_vmap_in_every_nesting() -> None:
    """Over keys and over parameters, shared and per environment, with one and two levels of vmap."""
    env = probes.truncation()._replace(reset=lambda key, params: (jnp.int32(0), jnp.full(1, params.every, jnp.float32)))
    cuts = jnp.array([[2, 3, 9], [1, 2, 4]])
    keys = jax.random.split(KEY(), 2)
    run = collect_all(env)
    solo = jit(run)  # always with one limit per environment, so there is one program
    both = jit(jax.vmap(lambda key: jax.vmap(lambda cut: run(key, probes.Cut(cut)))(cuts)))(keys)
    by_seed = jit(jax.vmap(lambda key, cut: run(key, probes.Cut(cut))))(keys, jnp.array([2, 5]))
    for k in range(2):
        for c in range(2):
            assert_bit_equal(jax.tree.map(lambda x, k=k, c=c: x[k, c], both), solo(keys[k], probes.Cut(cuts[c])))
        own = jnp.full(NUM_ENVS, (2, 5)[k])
        assert_bit_equal(jax.tree.map(lambda x, k=k: x[k], by_seed), solo(keys[k], probes.Cut(own)))


# ------------------------------------------------------------------------------------------------------------- the reset's cond


def primitives(jaxpr: Any) -> list[str]:
    """Return the names of all primitives, also in inner programs."""
    names = []
    for equation in jaxpr.eqns:
        names.append(equation.primitive.name)
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                names += primitives(inner)
    return names


VMAPS: dict[str, Callable[[Callable[..., Any]], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "over keys": lambda f: (jax.vmap(f, in_axes=(0, None)), (jax.random.split(KEY(), 2), probes.Cut())),
    "over keys and parameters": lambda f: (jax.vmap(f), (jax.random.split(KEY(), 2), probes.Cut(jnp.array([2, 3])))),
    "over parameters alone": lambda f: (jax.vmap(f, in_axes=(None, 0)), (KEY(), probes.Cut(jnp.array([2, 3])))),
    "with parameters per environment": lambda f: (
        jax.vmap(f),
        (jax.random.split(KEY(), 2), probes.Cut(jnp.arange(6).reshape(2, 3))),
    ),
    "twice": lambda f: (
        jax.vmap(jax.vmap(f, in_axes=(0, None))),
        (jax.random.split(KEY(), (2, 2)), probes.Cut(jnp.array([2, 3]))),
    ),
}


@pytest.mark.parametrize("how", VMAPS)
def test_the_reset_hangs_on_a_cond_under_vmap(how: str) -> None:
    mapped, arguments = VMAPS[how](collect_all(probes.truncation()))
    assert primitives(jax.make_jaxpr(mapped)(*arguments).jaxpr).count("cond") == 1


def test_the_compiled_program_still_branches() -> None:
    mapped, arguments = VMAPS["over keys and parameters"](collect_all(probes.truncation()))
    assert " conditional(" in jax.jit(mapped).lower(*arguments).compile().as_text()


def test_the_cond_test_would_notice() -> None:
    """A plain cond becomes a select under vmap."""

    def naive(done: Any, x: Any) -> Any:
        return jax.lax.cond(done.any(), lambda: jnp.sin(x), lambda: x)

    arguments = jnp.zeros((2, 3), bool), jnp.ones((2, 3))
    assert "cond" in primitives(jax.make_jaxpr(naive)(*(x[0] for x in arguments)).jaxpr)
    assert "cond" not in primitives(jax.make_jaxpr(jax.vmap(naive))(*arguments).jaxpr)
    assert " conditional(" not in jax.jit(jax.vmap(naive)).lower(*arguments).compile().as_text()


@pytest.mark.parametrize("build, reads, products", [(small_ppo, 0, 4), (partial(small_dqn, buffer_size=80_000), 4, 3)])
def test_whole_agents_keep_the_cond(build: Callable[..., Any], reads: int, products: int) -> None:
    """These conds stay under vmap over states: resets, reads of a large replay buffer, products of differentiated layers.

    Reads are by platform, and within the CPU's choice. Products are by platform too: what is kept, and what is added to the
    gradient. Another cond would have become a select of the whole state.
    """
    agent = build(probes.truncation())
    states = jax.eval_shape(jax.vmap(agent.init), jax.eval_shape(lambda: jax.random.split(KEY(), 2)))
    names = primitives(jax.make_jaxpr(jax.vmap(agent.step))(states).jaxpr)
    assert names.count("cond") == 1 + 2 * reads + 2 * products


def test_only_what_is_done_is_reset() -> None:
    env = probes.observed_value()
    env_id, done = jnp.arange(4, dtype=jnp.int32), jnp.array([False, True, False, True])
    old = jnp.full((4, 1), 9.0)
    state, obs = reset_done_envs(env, done, KEY(), env_id, old, old, ())
    fresh, _ = jax.vmap(env.reset, in_axes=(0, None))(fold_each(KEY(), env_id), ())
    for got in (state, obs):
        np.testing.assert_array_equal(got, jnp.where(expand_mask(done, old), fresh, old))
    untouched = reset_done_envs(env, jnp.zeros(4, bool), KEY(), env_id, old, old, ())
    assert_bit_equal(untouched, (old, old))


# -------------------------------------------------------------------------------------------------------------------- parameters


def test_params_axes() -> None:
    class Params(NamedTuple):
        gravity: Any = 9.8
        walls: Any = np.zeros(4)

    env = probes.constant_reward()._replace(params=Params())
    assert params_axes(env, Params()) == (None, None)
    assert params_axes(env, Params(np.zeros(3), np.zeros(4))) == (0, None)
    assert params_axes(env, Params(1.0, np.zeros((3, 4)))) == (None, 0)
    assert params_axes(env._replace(params=()), ()) == ()


def test_parameters_of_another_structure_are_refused() -> None:
    agent = small_ppo(probes.truncation())
    for wrong in ({"every": 3}, 3, (3,), probes.Cut((1, 2))):
        with pytest.raises(
            ValueError, match="env_params must have the structure of the environment's own params, a Cut like"
        ) as caught:
            agent.init(KEY(), None, wrong)
        assert str(caught.value).endswith(": use agent.env.params._replace(name=value)") and "PyTreeDef" not in str(caught.value)
    with pytest.raises(TypeError, match=r"^env_params\.every='a' must be a number or an array"):
        agent.init(KEY(), None, probes.Cut("a"))


def test_parameters_for_another_number_of_environments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"env_params.*num_envs"):
        small_ppo(probes.truncation(), num_envs=4).init(KEY(), None, probes.Cut(jnp.array([2, 3])))


def test_numpy_parameters_may_be_indexed_by_what_is_traced() -> None:
    env, agent = make_env("Acrobot-v1"), small_ppo("Acrobot-v1")
    assert isinstance(env.params.available_torque, np.ndarray)  # Acrobot's step looks up the action in it

    def play(key: Any, policy: Any) -> Any:
        actor = init_actor(agent.algorithm, env, key, jnp.arange(4), env.params)
        return collect(agent.algorithm, env, policy, actor, env.params, jnp.arange(4), key, 3)

    policy = agent.algorithm.policy(jax.eval_shape(agent.init, KEY()).learner)
    _, rows, _ = jax.eval_shape(play, KEY(), policy)
    assert rows.action.shape == (3, 4)


class Walled(NamedTuple):
    walls: Any = np.zeros(3)


@pytest.mark.parametrize("walls", [np.float32(0), np.zeros((4, 2, 3)), np.zeros(5)], ids=["too few axes", "too many", "too long"])
def test_parameters_of_another_shape_are_refused(walls: Any) -> None:
    agent = small_ppo(probes.constant_reward()._replace(params=Walled()), num_envs=4)
    with pytest.raises(ValueError, match=r"env_params.*walls.*shape"):
        agent.init(KEY(), None, Walled(walls))


@pytest.mark.parametrize(
    "build, space",
    [
        (small_ppo, spaces.Discrete(2, dtype=np.uint8)),
        (small_dqn, spaces.Discrete(2, dtype=np.uint8)),
        (small_ppo, spaces.Box(0, 4, (1,), np.float16)),
    ],
)
def test_action_spaces_of_small_types(build: Callable[..., Any], space: spaces.Space) -> None:
    env = (probes.constant_reward() if isinstance(space, spaces.Discrete) else probes.target_action())._replace(
        action_space=space
    )
    agent = build(env)
    before = jax.eval_shape(agent.init, KEY())
    after, _ = jax.eval_shape(agent.step, before)
    assert after == before  # shapes and dtypes are those of a state that can be continued
    assert after.actor.input.prev_action.dtype == (jnp.int32 if isinstance(space, spaces.Discrete) else jnp.float32)
