"""envpool's environments as operations of a compiled program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.envs.host import cast
from jaxrl.types import Array, CompiledEnvs, HostStep, PyTree


def compiled_envs(pool: Any, dtypes: PyTree, told: Mapping[str, np.dtype], action_dtype: Any) -> CompiledEnvs:
    """``pool`` for a program on a CPU; what it gives has the types ``dtypes``, as on the host.

    envpool reads and writes 64-bit numbers where its C++ does, and says so to JAX by JAX's own types, which have 32 bits as a
    rule: it would write beyond the ends of arrays. So all that is told of its types is told with 64 bits allowed.
    """
    with jax.enable_x64(True):
        handle, recv_, send_, _ = pool.xla()

    def send(handle: Array, action: Array) -> Array:
        with jax.enable_x64(True):
            sent: Array = send_(handle, action.astype(action_dtype))
        return sent

    def recv(handle: Array) -> tuple[Array, HostStep]:
        with jax.enable_x64(True):
            handle, (obs, reward, terminated, truncated, info) = recv_(handle)
            obs, reward = cast(obs, dtypes), reward.astype(jnp.float32)
            told_ = {name: info[name].astype(dtype) for name, dtype in told.items()}
        return handle, HostStep(obs, reward, terminated, truncated, told_)

    return CompiledEnvs(jnp.asarray(handle), send, recv)
