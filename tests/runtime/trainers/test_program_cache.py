"""Programs kept between calls: the number of compilations, and that the kept programs are bounded and released."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import pytest

import jaxrl
from jaxrl.runtime.trainers import program_cache
from tests.helpers import probes
from tests.helpers.agents import small_ppo
from tests.helpers.hosted import clock


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """List with one entry per program that is compiled, or read from the compilation cache."""
    found: list[str] = []

    def listen(name: str, seconds: float, **_: Any) -> None:
        if name.endswith("backend_compile_duration"):
            found.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("on_host", [False, True], ids=["pure", "host"])
def test_evaluations_in_a_loop_compile_once(on_host: bool, compiled: list[str]) -> None:
    agent = small_ppo(clock() if on_host else probes.action_choice())
    state = agent.init(jax.random.key(0))
    keys = list(jax.random.split(jax.random.key(1), 4))
    jaxrl.evaluate(agent, state, keys[0], 2, max_steps=3)
    first = len(compiled)
    for key in keys[1:]:
        jaxrl.evaluate(agent, state, key, 2, max_steps=3)
    assert first and len(compiled) == first
    jaxrl.evaluate(agent._replace(spec={}), state, keys[0], 2, max_steps=3)  # the same algorithm and environment
    assert len(compiled) == first


@pytest.mark.slow
def test_what_is_kept_is_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    program_cache.evaluation_program.cache_clear()

    def play() -> weakref.ref[Any]:
        agent = small_ppo(probes.action_choice())
        jaxrl.evaluate(agent, agent.init(jax.random.key(0)), jax.random.key(1), 2)
        return weakref.ref(program_cache.evaluation_program(program_cache.SameAgent(agent), 2, False, None))

    first = play()
    for _ in range(program_cache.KEPT):
        play()
    gc.collect()
    assert first() is None and program_cache.evaluation_program.cache_info().currsize == program_cache.KEPT
