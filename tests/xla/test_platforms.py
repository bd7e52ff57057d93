"""Code for CPUs: chosen in programs for CPUs, and not traced where JAX's default device is an accelerator."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxrl.xla import fast_random
from jaxrl.xla.cache_blocking import cut_to_cache, is_a_part
from jaxrl.xla.copies import repeated
from jaxrl.xla.platforms import on_cpu
from tests.helpers.lowering import ACCELERATORS, lowered, operations

X = jnp.arange(4.0)


def chosen(x: Any) -> Any:
    return on_cpu(x, cpu=jnp.sin, default=jnp.cos)


def work(x: Any) -> Any:
    """Compute products whose results do not fit in the cache."""
    return x @ jnp.ones((x.shape[1], 2048))


ROWS = jnp.ones((4096, 8))


def test_programs_have_the_code_of_their_platform() -> None:
    assert "sine" in lowered(chosen, X, platforms=["cpu"]) and "cosine" not in lowered(chosen, X, platforms=["cpu"])
    for platform in ACCELERATORS:
        assert "cosine" in lowered(chosen, X, platforms=[platform])
        assert operations(lowered(chosen, X, platforms=[platform]))["sine"] == 0


@pytest.mark.parametrize("started", [True, False])
def test_accelerators_do_not_trace_it(started: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(x: Any) -> Any:
        return cut_to_cache(lambda parts, x: x + parts, (x,), work, len(x))

    def primitives(function: Any, *args: Any) -> set[str]:
        return {eqn.primitive.name for eqn in jax.make_jaxpr(lambda *args: function(*args))(*args).jaxpr.eqns}

    monkeypatch.setattr("jaxrl.xla.cache_blocking.cache_to_fill", lambda: 1 << 21)
    cases = [(chosen, X), (lambda x: repeated(x, 3), X), (cut, ROWS)]
    assert all("cond" in primitives(*case) for case in cases) and is_a_part(work, ROWS, rows=len(ROWS))
    monkeypatch.setattr("jaxrl.xla.platforms.backends_started", lambda: started)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert [("cond" in primitives(*case)) for case in cases] == [not started] * 3
    assert is_a_part(work, ROWS, rows=len(ROWS)) == (not started)


def test_other_platforms_draw_with_jaxs_functions() -> None:
    """Their programs have JAX's own kernels, and no rounds of ours."""

    def draws(random: Any) -> Any:
        return lambda key: (random.bits(key, (64,)), jax.random.key_data(random.split(random.fold_in(key, 7))))

    key = jax.eval_shape(lambda: jax.random.key(0))
    for platform in ACCELERATORS:
        ours, jaxs = (lowered(draws(random), key, platforms=[platform]) for random in (fast_random, jax.random))
        assert [operations(ours)[name] for name in ("xor", "shift_left", "custom_call", "while")] == [
            operations(jaxs)[name] for name in ("xor", "shift_left", "custom_call", "while")
        ]
    assert operations(lowered(draws(fast_random), key, platforms=["cpu"]))["while"] == 0
