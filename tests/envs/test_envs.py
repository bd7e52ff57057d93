"""Ids, the registry, and environments of user modules."""

import importlib
import re
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl.envs as envs
from jaxrl.envs import check_env, describe_env, list_envs, make_env
from jaxrl.envs.ids import EnvId, format_id, parse_id
from jaxrl.types import Env, HostEnv
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.expensive(40)

CORRIDOR = """
import jax.numpy as jnp
from gymnasium import spaces
from jaxrl.types import Env, TimeStep

def reset(key, params):
    return jnp.float32(0), jnp.zeros(1)

def step(key, position, action, params):
    position = position + 2.0 * action - 1.0
    done = jnp.abs(position) >= params["length"]
    return position, TimeStep(position[None], done.astype(jnp.float32), done, jnp.asarray(False))

def corridor(length=3.0):
    return Env(reset, step, spaces.Box(-100.0, 100.0, (1,)), spaces.Discrete(2), {"length": float(length)})

def picky(size):
    return corridor(size)

def anything(**options):
    return corridor(**options)

def number():
    return 3

corridor_env = corridor()
"""


@pytest.fixture
def my_envs(tmp_path, monkeypatch):
    """Put a user's package ``my_package.my_envs`` on the path. Its environments leave the cache with it."""
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "my_envs.py").write_text(CORRIDOR)
    (package / "broken.py").write_text("import package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_package.my_envs"
    envs._MADE.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


# ------------------------------------------------------------------------------------------------------------------------- ids

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3) | st.tuples(inner),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,5}", fullmatch=True), plain, max_size=3))
def test_ids_read_back_as_written(options):
    written = format_id(EnvId("gymnax", "Some/Name-v1", options))
    assert parse_id(written) == EnvId("gymnax", "Some/Name-v1", options)
    assert format_id(parse_id(written)) == written


def test_an_id_is_canonical():
    assert parse_id("CartPole-v1") == EnvId("gymnax", "CartPole-v1", {})
    assert parse_id("a.b:c?x=1&y=[1, 2]&z=word") == EnvId("a.b", "c", {"x": 1, "y": [1, 2], "z": "word"})
    options = {"b": np.float32(0.5), "a": np.arange(2), "c": float("inf"), "d": jax.numpy.int32(3)}
    assert format_id(EnvId("gymnax", "X", options)) == "gymnax:X?a=[0,1]&b=0.5&c=1e999&d=3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "incomplete"),
        (":CartPole-v1", "incomplete"),
        ("envpool:", "incomplete"),
        ("CartPole-v1?gravity", "'gravity' is not an option"),
        ("CartPole-v1?gravity=1&gravity=2", "'gravity' twice"),
        (
            "gymnx:CartPole-v1",
            "unknown backend 'gymnx': write 'CartPole-v1' or 'envpool:CartPole-v1' or 'gymnasium:CartPole-v1'. Backends: brax",
        ),
        ("gymnx:Nowhere-v1", r"^unknown backend 'gymnx' in the environment id 'gymnx:Nowhere-v1'\. Did you mean 'gymnax'\?$"),
        (
            "nomod:make",
            "unknown backend 'nomod' in the environment id 'nomod:make'. Backends: brax, .*no module 'nomod' was found",
        ),
        ("nomod:", "environment id 'nomod:' is incomplete: write 'name', 'backend:name' or 'module:function'$"),
        ("gym:LunarLander-v3", "unknown backend 'gym': write 'envpool:LunarLander-v3'"),
        ("LunarLander-v3", "gymnax has no environment 'LunarLander-v3': write 'envpool:LunarLander-v3'"),
        ("HalfCheetah-v4", "gymnax has no environment 'HalfCheetah-v4': write 'envpool:HalfCheetah-v4'"),
        ("Taxi-v4", "gymnax has no environment 'Taxi-v4': write .*'gymnasium:Taxi-v4'$"),  # newer envpools have it too
        ("gymnasium:ALE/Pong-v5", "gymnasium has no environment 'ALE/Pong-v5': write 'envpool:Pong-v5'$"),
        ("ALE/Pong-v5", "gymnax has no environment 'ALE/Pong-v5': write 'envpool:Pong-v5'$"),
        ("envpool:Catch-bsuite", "envpool has no environment 'Catch-bsuite': write 'Catch-bsuite'$"),
        (
            "no.such.module:chain",
            "unknown backend 'no.such.module'.*no module 'no.such.module' was found in '.*or put that folder on",
        ),
        ("./my_env.py:make", "name a module as Python imports it, without a folder and without .py: 'my_env:make'$"),
        ("my_env.py:make", "without a folder and without .py: 'my_env:make'$"),
        ("my-env:make", "unknown backend 'my-env'.*or name a module and its function as Python imports them$"),
        ("BitFlip?n=4", "gymnax has no environment 'BitFlip': write 'jaxrl:BitFlip'$"),
        ("CartPole", "no environment 'CartPole': write 'CartPole-v1'$"),
        # Other versions, and names as in other libraries:
        ("LunarLander-v2", "'LunarLander-v2': write 'envpool:LunarLander-v2', or the newer 'envpool:LunarLander-v3'$"),
        ("gymnasium:LunarLander-v2", "write 'envpool:LunarLander-v2', or the newer 'gymnasium:LunarLander-v3'$"),
        ("Pendulum-v0", "write 'envpool:Pendulum-v0', or the newer 'Pendulum-v1'$"),
        ("BipedalWalker-v2", "write 'envpool:BipedalWalker-v3'$"),
        ("PongNoFrameskip-v4", "write 'envpool:Pong-v5', which skips 4 frames and stacks 4 by itself$"),
        ("gymnasium:BreakoutDeterministic-v4", "write 'envpool:Breakout-v5', which skips 4 frames and stacks 4 by itself$"),
        ("Breakout-v4", "write 'envpool:Breakout-v5'$"),
        ("MinAtar/Breakout-v1", "write 'Breakout-MinAtar'$"),
    ],
)
def test_wrong_ids_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        make_env(text)


def test_options_must_be_plain_data():
    for value in (object(), float("nan"), jax.random.key(0), lambda: 0):
        with pytest.raises(TypeError, match=r"option gravity=.* is not plain data"):
            make_env("CartPole-v1", gravity=value)
    with pytest.raises(TypeError, match=r"not a jaxrl\.Env, which is already an environment"):
        make_env(make_env("CartPole-v1"))


# -------------------------------------------------------------------------------------------------------------- naming, caching


def test_the_name_rebuilds_the_environment():
    env = make_env("CartPole-v1", max_steps_in_episode=100, gravity=5)
    assert env.name == "gymnax:CartPole-v1?gravity=5&max_steps_in_episode=100"
    assert make_env(env.name) is env
    assert make_env("gymnax:CartPole-v1?max_steps_in_episode=100", gravity=5) is env
    assert make_env("CartPole-v1?gravity=7&max_steps_in_episode=100", gravity=5) is env  # keywords win


def test_describe_env_gives_an_id_only_where_it_rebuilds():
    env = make_env("CartPole-v1", gravity=5.0)
    assert isinstance(env, Env)
    assert describe_env(env) == "gymnax:CartPole-v1?gravity=5.0"
    assert describe_env(env._replace(params=env.params.replace(gravity=np.float32(4)))) is None
    assert describe_env(env._replace(step=lambda *args: env.step(*args))) is None
    assert describe_env(env._replace(max_episode_steps=10)) is None
    assert describe_env(env._replace(name="mine")) is None
    host = make_env("envpool:CartPole-v1", max_episode_steps=9)
    assert describe_env(host) == "envpool:CartPole-v1?max_episode_steps=9"
    assert describe_env(host._replace(options={})) is None
    assert describe_env(host._replace(open=lambda num_envs, seed: None)) is None
    assert describe_env(host._replace(open_eval=lambda num_envs, seed: None)) is None


def test_list_envs():
    ids = list_envs()
    assert "gymnax:CartPole-v1" in ids and "envpool:CartPole-v1" in ids
    assert not any("MNISTBandit" in name for name in ids)
    assert len(list_envs("gymnax")) == 25 and all(name.startswith("gymnax:") for name in list_envs("gymnax"))
    with pytest.raises(ValueError, match=r"unknown backend 'envpol'\. Did you mean 'envpool'"):
        list_envs("envpol")


def test_register_backend(monkeypatch):
    monkeypatch.setattr(envs, "_REGISTERED", {})
    monkeypatch.setattr(envs, "_ON_HOST", {*envs._ON_HOST})
    made = make_env("CartPole-v1")
    envs.register_backend("mine", lambda name, options: made._replace(params={"name": len(name), **options}), lambda: ["a", "b"])
    env = make_env("mine:abc", x=1)
    assert (env.name, env.params, describe_env(env)) == ("mine:abc?x=1", {"name": 3, "x": 1}, "mine:abc?x=1")
    assert list_envs("mine") == ["mine:a", "mine:b"]
    envs.register_backend("hosted", lambda name, options: made, lambda: [], on_host=True)
    ids = ("envpool:Pong-v5", "gymnasium:a:B-v0", "hosted:a?b=1", "mine:a", "CartPole-v1", "envpool", "None")
    assert [envs.runs_on_host(env_id) for env_id in ids] == [True, True, True, False, False, True, False]
    with pytest.raises(ValueError, match="'mine' exists already"):
        envs.register_backend("mine", lambda name, options: made, lambda: [])
    with pytest.raises(ValueError, match="must be an identifier"):
        envs.register_backend("my:env", lambda name, options: made, lambda: [])
    envs._MADE.clear()


# --------------------------------------------------------------------------------------------------------------- users' modules


def test_a_function_of_a_module_is_an_environment(my_envs):
    env = make_env(f"{my_envs}:corridor", length=5.0)
    assert (env.name, env.params) == (f"{my_envs}:corridor?length=5.0", {"length": 5.0})
    assert make_env(env.name) is env and describe_env(env) == env.name
    assert make_env(f"{my_envs}:anything?length=2.0").params == {"length": 2.0}


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("corridr", {}, ValueError, "no function 'corridr'. Did you mean 'corridor'"),
        ("corridor_env", {}, ValueError, "no function 'corridor_env'"),
        ("corridor", {"lenght": 3}, ValueError, "no option 'lenght'. Did you mean 'length'"),
        ("picky", {}, ValueError, "needs the option 'size'"),
        ("number", {}, TypeError, "number returned int; it must return a jaxrl.types.Env"),
        ("corridor", {"length": "long"}, ValueError, r"option length='long' must be a number \(its default is"),
        ("anything", {"sparse": "false"}, ValueError, "option sparse=false is text: write False"),
    ],
)
def test_errors_about_a_module(my_envs, name, options, error, message):
    with pytest.raises(error, match=message):
        make_env(f"{my_envs}:{name}", **options)


def test_a_module_that_fails_to_import_is_not_an_unknown_backend(my_envs):
    with pytest.raises(ModuleNotFoundError, match="package_that_is_not_there"):
        make_env("my_package.broken:corridor")


def test_a_module_that_is_reloaded_makes_its_environments_anew(my_envs):
    before = make_env(f"{my_envs}:corridor")
    wrapped = make_env(f"{my_envs}:corridor|time_limit(7)")
    assert make_env(f"{my_envs}:corridor") is before
    importlib.reload(sys.modules[my_envs])
    after = make_env(f"{my_envs}:corridor")
    assert after is not before and make_env(f"{my_envs}:corridor") is after
    assert make_env(f"{my_envs}:corridor|time_limit(7)") is not wrapped


def test_an_environment_of_main_has_no_id(monkeypatch, my_envs):
    env = make_env(f"{my_envs}:corridor")
    monkeypatch.setattr(sys.modules["__main__"], "corridor", lambda: env, raising=False)
    assert describe_env(make_env("__main__:corridor")) is None


@pytest.mark.slow
def test_the_example_is_an_environment_and_learns(monkeypatch):
    examples = ROOT / "examples"
    monkeypatch.syspath_prepend(examples)
    env = make_env("custom_env:make_drift?wind=0.5")
    assert env.params.wind == 0.5 and describe_env(env) == env.name
    check_env(env)
    done = subprocess.run([sys.executable, examples / "custom_env.py"], check=True, timeout=300, capture_output=True, text=True)
    first, last = (float(number) for number in re.findall(r"mean return ([\d.]+)", done.stdout))
    assert last > 30 and last > first + 5


# ---------------------------------------------------------------------------------------------------------- optional packages


@pytest.mark.parametrize("package", ["gymnax", "envpool"])
def test_a_missing_package_is_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=f"{package}:CartPole-v1 needs .*pip install {package}"):
        make_env(f"{package}:CartPole-v1", **{"max_episode_steps" if package == "envpool" else "max_steps_in_episode": 77})
    with pytest.raises(ModuleNotFoundError, match=f"pip install {package}"):
        list_envs(package)
    assert not any(name.startswith(package) for name in list_envs())


@pytest.mark.slow
def test_import_is_lazy_and_validation_starts_no_backend(my_envs, tmp_path):
    program = f"""
        import sys
        import jaxrl.envs
        from jaxrl.xla.private_jax import backends_started
        assert not {{"gymnax", "envpool", "flax"}} & set(sys.modules)
        sys.path.append({str(tmp_path)!r})
        for name in ("{my_envs}:corridor", "envpool:CartPole-v1"):
            jaxrl.envs.validate_env(jaxrl.envs.make_env(name))
        assert not backends_started()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=120)


def test_the_kinds():
    assert isinstance(make_env("CartPole-v1"), Env)
    assert isinstance(make_env("envpool:CartPole-v1"), HostEnv)
