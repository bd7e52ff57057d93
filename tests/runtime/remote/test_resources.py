"""CPUs, GPUs and memory of remote objects: sizes, what is left, shares of GPUs."""

from __future__ import annotations

import os
from typing import Any

import pytest

from jaxrl.runtime.remote import resources
from jaxrl.runtime.remote.errors import NotEnough
from jaxrl.runtime.remote.resources import Gpus, Resources, check_enough, left_of, memory_in_use, number_that_fit, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [(1, 1), ("512", 512), ("2GB", 2 * 10**9), ("2 gb", 2 * 10**9), ("1.5G", 15 * 10**8), ("512MiB", 2**29), ("3ki", 3072)],
)
def test_sizes(text: int | str, size: int) -> None:
    assert parse_size("memory", text) == size


@pytest.mark.parametrize("wrong", ["", "GB", "-1GB", "2 QB", "1e9", "0", 0, -5, 1.5, True, None, []])
def test_wrong_sizes(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"memory=.* must be a number of bytes, or text such as"):
        parse_size("memory", wrong)


def test_what_is_left() -> None:
    total, used = Resources(8, 2, 1000), [Resources(1, 0.5, 0), Resources(2.5, 0, 600)]
    left = left_of(total, used)
    assert left == Resources(4.5, 1.5, 400) and left_of(total, []) == total
    assert [number_that_fit(Resources(*x), left, 10) for x in ((1, 0, 0), (1, 0.5, 0), (0, 0, 300), (0, 0, 0))] == [4, 3, 1, 10]
    check_enough("it", Resources(4.5, 1.5, 400), total, left, "hint")
    with pytest.raises(
        NotEnough, match=r"^it asks for 401 bytes of memory, and there are 1000 bytes, and other objects use 600 bytes"
    ):
        check_enough("it", Resources(1, 0, 401), total, left, "hint")
    with pytest.raises(NotEnough, match=r"^it asks for 3 GPUs, and there are 2: hint$"):
        check_enough("it", Resources(1, 3, 0), total, total, "hint")


def test_gpus_are_whole_or_shared_by_fractions() -> None:
    gpus = Gpus(["0", "1", "7"])
    first, half, other = gpus.take(1), gpus.take(0.5), gpus.take(0.5)
    assert (first, half, other, gpus.take(0)) == ({"0": 1.0}, {"1": 0.5}, {"1": 0.5}, {})
    with pytest.raises(NotEnough, match="gpus=2: other objects have a part"):
        gpus.take(2)
    gpus.give_back(first)
    assert gpus.take(2) == {"0": 1.0, "7": 1.0}
    with pytest.raises(NotEnough):
        gpus.take(0.25)
    with pytest.raises(ValueError, match=r"gpus=1\.5 must be a whole number, or a fraction of one GPU"):
        gpus.take(1.5)


def test_gpus_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "count_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert resources.visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert resources.visible_gpus() == ["3", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert resources.visible_gpus() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert resources.visible_gpus() == []


def test_memory_of_a_group_of_processes() -> None:
    found = memory_in_use([os.getpgid(0)])
    assert found[os.getpgid(0)] >= resources.memory_of(os.getpid()) * 0.9 > 10**7
    assert memory_in_use([]) == {}
