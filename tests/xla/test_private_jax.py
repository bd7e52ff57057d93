"""Interfaces that JAX may change: they are found, or replaced or named if they are missing."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.runtime.trainers import fused
from jaxrl.xla import cache_blocking, constants, fast_random, private_jax
from jaxrl.xla.ordered_collectives import in_order
from jaxrl.xla.private_jax import NotInThisJax, known_options
from tests.helpers.agents import assert_bit_equal, cartpole
from tests.helpers.fast_flags import FAST, fast_flags


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return ``private_jax`` as loaded in a JAX that moved the interfaces for traced programs."""
    import jax.extend.core

    monkeypatch.setitem(sys.modules, "jax.extend.core", None)
    monkeypatch.delattr(jax.extend, "core")
    spec = importlib.util.find_spec("jaxrl.xla.private_jax")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "NotInThisJax", NotInThisJax)
    return module


@pytest.mark.parametrize("name", private_jax.NAMES)
def test_what_is_missing_is_named_on_use(name: str, bare: ModuleType) -> None:
    for use in (lambda x: x(1), lambda x: isinstance(1, x)):
        with pytest.raises(NotInThisJax, match=rf"jax {jax.__version__} has no jax\.extend\.core\.{name}, .*pip install"):
            use(getattr(bare, name))


def test_without_traced_programs_nothing_is_cut(bare: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    work = jnp.zeros((1 << 14, 256)), jnp.zeros((256, 256))
    monkeypatch.setattr(cache_blocking, "cache_to_fill", lambda: 1 << 21)
    assert cache_blocking.parts_in_cache(jnp.matmul, *work, rows=1 << 14) > 1
    monkeypatch.setattr(cache_blocking, "jaxprs_in_params", bare.jaxprs_in_params)
    assert cache_blocking.parts_in_cache(jnp.matmul, *work, rows=1 << 14) == 1


def test_without_traced_programs_a_backend_gives_the_constants(bare: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "Literal", bare.Literal)
    found = constants.constants(lambda: {"low": -jnp.arange(3.0), "name": "x"})
    np.testing.assert_array_equal(found["low"], [0, -1, -2])
    assert found["name"] == "x"


def test_without_traced_programs_collectives_are_not_ordered_but_refused(
    bare: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxrl.xla.ordered_collectives.jaxprs_in_params", bare.jaxprs_in_params)
    total = jax.vmap(in_order(lambda x: jax.lax.psum(jax.jit(jnp.sin)(x), "d")), axis_name="d")
    with pytest.raises(NotInThisJax, match="jaxprs_in_params"):
        total(jnp.arange(2.0))


def test_a_parameter_by_any_of_its_names() -> None:
    eqn: Any = SimpleNamespace(params={"call_jaxpr": 3}, primitive=SimpleNamespace(name="closed_call"))
    assert private_jax.parameter(eqn, "jaxpr", "call_jaxpr") == 3
    with pytest.raises(NotInThisJax, match="has no parameter jaxpr or body of closed_call"):
        private_jax.parameter(eqn, "jaxpr", "body")


@pytest.mark.parametrize("has_tracer", [True, False])
def test_traced_arrays_are_known(has_tracer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_tracer:
        monkeypatch.delattr(jax.core, "Tracer")
    seen = []

    def look(x: Any) -> Any:
        seen.append(private_jax.is_traced(x))
        return x

    for transformed in (jax.jit, jax.vmap, jax.grad):
        transformed(look)(jnp.ones(2) if transformed is jax.vmap else 1.0)
    assert seen == [True] * 3
    assert not any(map(private_jax.is_traced, (1.0, np.ones(2), jnp.ones(2), jax.random.key(0), "x")))


def test_loops_are_read_off_their_shapes() -> None:
    def loops(x: Any, key: Any) -> Any:
        (total, _), rows = jax.lax.scan(lambda c, row: ((c[0] + row[0] * x[0], c[1]), (c[0], row[1])), (0.0, key), (x, x))
        return rows, jax.lax.while_loop(lambda s: s < x[1], lambda s: s * x[0] + x[2], total)

    eqns = jax.make_jaxpr(loops)(jnp.arange(3.0), jax.random.key(0)).jaxpr.eqns
    (scan,) = (eqn for eqn in eqns if eqn.primitive.name == "scan")
    (loop,) = (eqn for eqn in eqns if eqn.primitive.name == "while")
    consts, carried = private_jax.scan_arguments(scan)
    assert carried in (1, 2) and consts + carried + 2 == len(scan.invars)  # JAX may remove carries that do not change
    condition, body = private_jax.while_arguments(loop)
    assert condition >= 1 and body >= 1 and condition + body + 1 == len(loop.invars)


def test_draws_without_a_generator_of_our_own_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    key = jax.random.key(3)
    ours = fast_random.bits(key, (4,))
    assert private_jax.define_prng("refused", (2,), no_such_function=None) is None
    monkeypatch.setattr(fast_random, "UNROLLED", None)
    assert fast_random._unrolled(key) is key
    assert_bit_equal(fast_random.bits(key, (4,)), ours)
    assert_bit_equal(fast_random.fold_in(key, 5), jax.random.fold_in(key, 5))


def test_settings_with_and_without_the_table_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    assert private_jax.setting("jax_num_cpu_devices") == 2  # set by tests/conftest.py
    monkeypatch.setattr(jax, "config", SimpleNamespace(jax_num_cpu_devices=7))
    assert private_jax.setting("jax_num_cpu_devices") == 7


def test_a_group_without_its_store_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import distributed

    assert private_jax.coordination() is None  # a single process has none
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.delattr(distributed, "global_state")
    with pytest.raises(NotInThisJax, match="global_state"):
        private_jax.coordination()


def test_whether_a_backend_is_there_may_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import xla_bridge

    jax.devices()
    assert private_jax.backends_started()
    monkeypatch.delattr(xla_bridge, "backends_are_initialized")
    assert not private_jax.backends_started()


# -------------------------------------------------------------------------------------------------------------- compiler options

UNKNOWN = {"xla_cpu_no_such_option": True, "xla_backend_optimization_level": 0, "xla_cpu_scheduler_type": "NO_SUCH_SCHEDULER"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the options with which an empty program is compiled."""
    said: list[list[str]] = []
    compiles = private_jax._compiles
    monkeypatch.setattr(private_jax, "_compiles", lambda options, *rest: said.append([*options]) or compiles(options, *rest))
    monkeypatch.setattr(private_jax, "_known", {})
    return said


def test_options_and_values_that_this_jaxlib_does_not_know_are_left_out(asked: list[list[str]]) -> None:
    assert known_options(UNKNOWN) == {"xla_backend_optimization_level": 0}
    assert asked == [[*UNKNOWN], *([name] for name in UNKNOWN)]


def test_each_option_is_asked_for_once(asked: list[list[str]]) -> None:
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    for _ in range(2):
        assert known_options(options) == options
    assert known_options({"xla_backend_optimization_level": 0}) == {"xla_backend_optimization_level": 0}
    assert asked == [[*options]]


@pytest.mark.slow
def test_a_run_trains_with_a_compiler_that_lacks_an_option(asked: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """jaxlib 0.11.2 has no ``xla_cpu_use_fusion_emitters``."""
    for name in ("CPU_OPTIONS", "QUICK_OPTIONS"):
        monkeypatch.setattr(fused, name, UNKNOWN | getattr(fused, name))
    jaxrl.run(cartpole("ppo"), 32, quiet=True)
    assert sum(UNKNOWN.keys() <= {*options} for options in asked) == 1


def test_flags_of_the_tests_are_those_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.helpers.fast_flags.FAST", UNKNOWN)
    assert fast_flags() == "--xla_backend_optimization_level=0"
    assert {"xla_backend_optimization_level", "xla_llvm_disable_expensive_passes"} <= known_options(FAST).keys()
