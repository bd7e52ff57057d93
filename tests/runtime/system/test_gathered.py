"""Arrays that are spread over CPU devices come to one of them, apart from large ones."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl.runtime.system import devices
from jaxrl.runtime.system.devices import gathered


def test_spread_arrays_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "LARGE", 4 * 1_000)
    two = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("seeds",)), PartitionSpec("seeds"))
    keys, large = jax.random.split(jax.random.key(0), 4), np.ones((4, 250), np.float32)
    tree = {"x": np.arange(8.0, dtype=np.float32), "key": keys, "large": large}
    spread = jax.tree.map(lambda x: jax.device_put(x, two), tree)
    found = gathered(spread)
    assert {name: len(x.sharding.device_set) for name, x in found.items()} == {"x": 1, "key": 1, "large": 2}
    np.testing.assert_array_equal(found["x"], tree["x"])
    np.testing.assert_array_equal(jax.random.key_data(found["key"]), jax.random.key_data(keys))
    one = jax.device_put(tree["x"], jax.devices()[1])
    assert all(x is y for x, y in zip(gathered((one, large, None)), (one, large, None), strict=True))
