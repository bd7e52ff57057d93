"""One host environment per mistake: each is detected and named, with a fix."""

import re
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import jaxrl
from jaxrl.envs import EnvError, check_env, make_env, validate_env
from jaxrl.types import HostEnv, HostStep
from tests.helpers.env_problems import problems


class Walk:
    """Host environments that meet the contract, with episodes of three steps."""

    def __init__(self, num_envs, seed):
        self.random, self.time, self.closed = np.random.default_rng(seed), np.zeros(num_envs, int), False

    def observe(self):
        return self.random.uniform(-1, 1, (len(self.time), 2)).astype(np.float32)

    def reset(self):
        if self.closed:
            raise RuntimeError("closed")
        self.time[:] = 0
        return self.observe()

    def step(self, action):
        after_end = self.time == 3
        self.time = np.where(after_end, 0, self.time + 1)
        reward = np.where(after_end, 0, 1).astype(np.float32)
        return HostStep(self.observe(), reward, np.zeros(len(reward), bool), self.time == 3)

    def close(self):
        self.closed = True


def host(base=Walk, space=None, actions=None, **methods):
    return HostEnv(type("Changed", (base,), methods), space or spaces.Box(-1, 1, (2,)), actions or spaces.Discrete(2))


def test_good_host_environments_pass():
    validate_env(host())
    check_env(host(), steps=10)
    check_env(make_env("envpool:CartPole-v1"), steps=10)


def replaced(**changes):
    def step(self, action):
        row = Walk.step(self, action)
        return row._replace(**{name: change(row) for name, change in changes.items()})

    return host(step=step)


def late_reward(self, action):
    row = Walk.step(self, action)
    return row._replace(reward=np.ones_like(row.reward))


def ends_again(self, action):
    after_end = self.time == 3
    row = Walk.step(self, action)
    return row._replace(truncated=row.truncated | after_end)


def endless(self, action):
    row = Walk.step(self, action)
    return row._replace(reward=np.ones(2, np.float32)[: len(row.reward)], truncated=np.zeros_like(row.truncated))


def same_buffer(self):
    if not hasattr(self, "buffer"):
        self.buffer = np.zeros((len(self.time), 2), np.float32)
    self.buffer[:] = self.random.uniform(-1, 1, self.buffer.shape)
    return self.buffer


def refuse(self, *args):
    raise OSError("no display")


def unseeded(self):
    return np.random.uniform(-1, 1, (len(self.time), 2)).astype(np.float32)


HOST = {
    "obs type": (replaced(obs=lambda row: row.obs.tolist()), "the obs that step returns has parts that are not NumPy arrays"),
    "obs dtype": (replaced(obs=lambda row: row.obs.astype(float)), "obs that step returns is float64.*has float32"),
    "obs range": (replaced(obs=lambda row: row.obs + 9), "obs that step returns is .*outside"),
    "batch": (
        host(reset=lambda self: np.zeros((1, 2), np.float32)),
        r"obs that reset returns is float32\[1, 2\].*float32\[2, 2\]",
    ),
    "obs advice": (replaced(obs=lambda row: row.obs.astype(np.float16)), r"cast it with np\.asarray\(x, dtype\)"),
    "obs and info": (host(reset=lambda self: (Walk.reset(self), {})), r"such as Gymnasium's \(obs, info\): return only obs"),
    "reward": (replaced(reward=lambda row: row.reward > 0), r"reward is bool\[2\].*must be a NumPy array float32"),
    "five parts": (
        host(step=lambda self, action: (*Walk.step(self, action)[:4], {})),
        r"step returned tuple; it must return .*HostStep\(\*row\[:4\]\)",
    ),
    "flags": (replaced(truncated=lambda row: row.truncated[:, None]), r"truncated is bool\[2, 1\]"),
    "info": (replaced(info=lambda row: [1, 2]), r"info is list\[2\]; it must be a dict of arrays"),
    "info text": (replaced(info=lambda row: {"name": np.array(["a", "b"])}), r"info\['name'\] is <U1\[2\]; with 2.*of numbers"),
    "info batch": (
        replaced(info=lambda row: {"lives": np.ones(3)}),
        r"info\['lives'\] is float64\[3\]; with 2 environments it must be a NumPy array of numbers \[2, \.\.\.\]",
    ),
    "info that comes and goes": (
        replaced(info=lambda row: {"end": row.reward} if row.truncated.any() else {}),
        r"info that step returns: structure \{'end': float32\[2\]\} differs from an earlier step's, \{\}",
    ),
    "numbering": (host(__init__=lambda self, num_envs, seed, first_id=0: Walk.__init__(self, num_envs, seed)), r"first_id \+ i"),
    "nan": (replaced(reward=lambda row: row.reward * np.float32(np.nan)), "reward is NaN"),
    "no HostStep": (host(step=lambda self, action: tuple(Walk.step(self, action))), "step returned tuple"),
    "reset row": (host(step=late_reward), "spent on the reset .*reward must be 0"),
    "evaluation": (host()._replace(open_eval=refuse), r"open_eval\(2, 0\), or reset\(\) .* raised OSError: no display"),
    "evaluation's rows": (
        host()._replace(open_eval=replaced(reward=lambda row: row.reward > 0).open),
        r"open_eval: reward is bool\[2\]; with 2 environments it must be",
    ),
    "end twice": (host(step=ends_again), "spent on the reset .*flags must be False"),
    "limit": (
        host(step=endless)._replace(max_episode_steps=5),
        r"continued past max_episode_steps=5: set truncated .*reset_where",
    ),
    "one buffer": (host(observe=same_buffer), "step changes arrays that it returned before: return copies"),
    "open": (host(__init__=refuse), r"open\(2, 0\) raised OSError: no display"),
    "step": (host(step=refuse), "the opened environments raised OSError: no display"),
    "seed": (host(observe=unseeded), "the same seed gave different results"),
    "space": (host(space=spaces.Box(-1, 1, (2,), np.float64)), "observation_space has dtype float64"),
    "action": (host(actions=spaces.Discrete(2, start=1)), "action_space starts at 1"),
}


@pytest.mark.parametrize("case", HOST)
def test_host_environments(case):
    env, message = HOST[case]
    with pytest.raises(EnvError, match=message) as caught:
        check_env(env, steps=8)
    assert len(caught.value.problems) == 1


class Slope:
    """Observes the sum of the actions so far, in episodes of three steps. Rewards are 0, so they carry no information."""

    def __init__(self, num_envs, seed, *, same_step):
        self.same_step, self.height, self.time = same_step, np.zeros((num_envs, 1), np.float32), np.zeros(num_envs, int)

    def reset(self):
        return self.height.copy()

    def step(self, action):
        begins = self.time == 3
        self.height = np.where(begins[:, None], 0, self.height + action[:, None]).astype(np.float32)
        self.time = np.where(begins, 0, self.time + 1)
        end, no = self.time == 3, np.zeros(len(action), bool)
        if self.same_step:
            self.height[end], self.time[end] = 0, 0
        return HostStep(self.height.copy(), np.zeros(len(action), np.float32), no, end)

    def close(self):
        pass


class Gymnasium:
    """gymnasium's vector environments in a minimal wrapper: rewards are float64, and close() closes little."""

    def __init__(self, num_envs, seed, *, same_step):
        mode = AutoresetMode.SAME_STEP if same_step else AutoresetMode.NEXT_STEP
        self.envs, self.seed = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * num_envs, autoreset_mode=mode), seed

    def reset(self):
        return self.envs.reset(seed=self.seed)[0]

    def step(self, action):
        return HostStep(*self.envs.step(action)[:4])

    def close(self):
        self.envs.close()


def slope(**settings):
    return HostEnv(partial(Slope, **settings), spaces.Box(-np.inf, np.inf, (1,)), spaces.Box(-1, 1, ()))


def of_gymnasium(**settings):
    one = gymnasium.make("CartPole-v1")
    return HostEnv(partial(Gymnasium, **settings), one.observation_space, one.action_space)


@pytest.mark.parametrize("make_host", [slope, of_gymnasium])
def test_ended_environments_reset_at_the_next_step(make_host):
    check_env(make_host(same_step=False), steps=60)
    with pytest.raises(EnvError, match=r"\(SAME_STEP\).*autoreset_mode=AutoresetMode\.NEXT_STEP") as caught:
        check_env(make_host(same_step=True), steps=60)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("render", "message"),
    [
        (lambda self: np.zeros((2, 4, 6, 3), np.uint8), None),
        (refuse, None),  # this machine has no display; others may have one
        (lambda self: np.zeros((1, 4, 6, 3), np.uint8), "render gave 1 pictures; with 2 environments it must give 2"),
        (lambda self: np.zeros((2, 4, 6), np.uint8), r"render gave uint8\[4, 6\]"),
        (lambda self: self.nothing, r"render\(\) of what open_render opened raised AttributeError"),
    ],
)
def test_pictures_of_host_environments(render, message):
    env = host()._replace(open_render=host(render=render).open)
    if message is None:
        check_env(env, steps=2)
    else:
        (problem,) = problems(env, partial(check_env, steps=2))
        assert re.search(message, problem)


def test_a_check_says_what_it_is_at(monkeypatch, capsys):
    said = []
    check_env(host(), steps=2, say=said.append)
    assert said == ["tracing reset and step", "step 1 of 2", "step 2 of 2", "step 1 of 2", "step 2 of 2"]
    jaxrl.check_env(host(), steps=2)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    jaxrl.check_env(host(), steps=2)
    out, err = capsys.readouterr()
    assert out == "" and "check_env" in err


def test_checked_host_environments_are_closed():
    closed = []
    with pytest.raises(EnvError):
        check_env(host(step=refuse, close=lambda self: closed.append(True)))
    assert closed == [True]
