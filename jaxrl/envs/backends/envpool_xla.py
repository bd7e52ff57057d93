"""Environments of envpool as operations of a compiled program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.host import cast
from jaxrl.types import Array, CompiledEnvs, HostStep


def compiled_envs(pool: Any, space: spaces.Space, info_dtypes: Mapping[str, np.dtype], action_dtype: Any) -> CompiledEnvs:
    """Return ``pool`` as operations of a compiled CPU program. Outputs have 32-bit types, as on the host.

    envpool's C++ code reads and writes some 64-bit numbers. JAX would truncate the declared types to 32 bits by default, and
    envpool would write past the ends of arrays. So types are declared with 64 bits enabled.
    """
    with jax.enable_x64(True):
        handle, recv_, send_, _ = pool.xla()

    def send(handle: Array, action: Array) -> Array:
        with jax.enable_x64(True):
            new_handle: Array = send_(handle, action.astype(action_dtype))
        return new_handle

    def recv(handle: Array) -> tuple[Array, HostStep]:
        with jax.enable_x64(True):
            handle, (obs, reward, terminated, truncated, info) = recv_(handle)
            obs, reward = cast(obs, space), reward.astype(jnp.float32)
            kept_info = {name: info[name].astype(dtype) for name, dtype in info_dtypes.items()}
        return handle, HostStep(obs, reward, terminated, truncated, kept_info)

    return CompiledEnvs(jnp.asarray(handle), send, recv)
