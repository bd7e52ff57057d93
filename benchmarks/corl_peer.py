"""JAX-CORL's updates of a case of offline learning. It runs in JAX-CORL's virtual environment, so it does not import jaxrl.

JAX-CORL is not a package. Its files are imported from a clone, unchanged. They also import d4rl, gym and wandb, which only their
scripts use: empty modules take their places.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.clones import JAX_CORL
from benchmarks.offline_cases import ACTION, Case, from_json, random_rows
from benchmarks.protocol import serve
from benchmarks.worker import installed_versions, peak_memory

UNUSED = ("d4rl", "gym", "wandb")
"""Packages that the files import for their scripts."""


class Names(NamedTuple):
    """Names in one of JAX-CORL's files, which is called like the algorithm."""

    updates: str
    """Class with ``update_n_times``."""
    config: str
    create: str
    """Function that makes the state."""
    networks: tuple[str, ...]
    """Parts of the state with parameters that are trained."""
    settings: dict[str, Any]
    """Settings that differ from its defaults."""


NAMES = {
    # Normalisation in its V is an option that jaxrl's policy would then have too.
    "iql": Names("IQL", "IQLConfig", "create_iql_train_state", ("actor", "critic", "value"), {"layer_norm": False}),
    "td3bc": Names("TD3BC", "TD3BCConfig", "create_td3bc_train_state", ("actor", "critic"), {}),
    # Its script sets these two for the environment.
    "cql": Names(
        "CQL",
        "CQLConfig",
        "create_cql_train_state",
        ("policy", "qf1", "qf2"),
        {"action_dim": ACTION, "target_entropy": -float(ACTION)},
    ),
}


def import_file(algorithm: str, folder: Path) -> Any:
    """Import one of JAX-CORL's files."""
    for name in UNUSED:
        sys.modules[name] = ModuleType(name)
    sys.modules["gym"].Env = object  # type: ignore[attr-defined]  # for annotations
    sys.argv = sys.argv[:1]  # the files read settings from the command line
    sys.path.insert(0, str(folder))
    return importlib.import_module(algorithm)


class Side:
    """Seeds of one algorithm: one after another, as JAX-CORL trains them, or all in one ``vmap``."""

    def __init__(self, case: Case, clone: Path, vmapped: bool) -> None:
        self.case, self.vmapped, self.names = case, vmapped, NAMES[case.algorithm]
        module = import_file(case.algorithm, JAX_CORL.files_of(clone))
        self.config = getattr(module, self.names.config)(batch_size=case.batch_size)
        for name, value in {"hidden_dims": case.hidden_sizes, **self.names.settings}.items():
            setattr(self.config, name, value)
        module.config = self.config  # CQL's policy reads the global one
        self.data = self._transitions(module.Transition)
        update = getattr(module, self.names.updates).update_n_times
        self.update: Any = jax.jit(update, static_argnums=(3,))
        create = getattr(module, self.names.create)
        self.states = [self._create(create, seed) for seed in range(case.num_seeds)]
        # Each state has different functions, for which `update` would be compiled again.
        first = jax.tree.structure(self.states[0])
        self.states = [jax.tree.unflatten(first, jax.tree.leaves(state)) for state in self.states]
        self.keys = list(jax.random.split(jax.random.PRNGKey(0), case.num_seeds))
        if vmapped:
            mapped = jax.vmap(lambda state, data, key: update(state, data, key, self.config), in_axes=(0, None, 0))
            self.update = jax.jit(lambda state, data, key, config: mapped(state, data, key), static_argnums=(3,))
            self.states = [jax.tree.map(lambda *x: jnp.stack(x), *self.states)]

    def _transitions(self, kind: Any) -> Any:
        rows = random_rows(self.case.rows)
        fields = [jnp.asarray(x) for x in (rows.obs, rows.action, rows.reward, rows.next_obs, rows.terminated)]
        known = dict(zip(("observations", "actions", "rewards", "next_observations", "dones"), fields, strict=True))
        return kind(**known | {name: known["dones"] for name in kind._fields if name not in known})

    def _create(self, create: Any, seed: int) -> Any:
        state = create(jax.random.PRNGKey(seed), self.data.observations[0], self.data.actions[0], self.config)
        # Python's numbers become arrays, or else the second call would be compiled again.
        return jax.tree.map(lambda x: jnp.array(x, jnp.asarray(x).dtype), state)

    def compile(self) -> dict[str, Any]:
        """Compile ``update_n_times``, and call it once for each seed."""
        start = time.perf_counter()
        key = self._next(0)
        self.update.lower(self.states[0], self.data, key, self.config).compile()
        seconds = time.perf_counter() - start
        self.train(1)
        return {
            "compile_seconds": seconds,
            "parameters": self.parameters(),
            "versions": {"JAX-CORL": JAX_CORL.commit, "distrax": version("distrax"), **installed_versions()},
        }

    def parameters(self) -> int:
        """Count the parameters of a seed's networks. Single numbers, such as CQL's factor on log σ, are not of a network."""
        networks = [getattr(self.states[0], name).params for name in self.names.networks]
        return sum(np.size(x) for x in jax.tree.leaves(networks) if np.ndim(x) > self.vmapped) // self._seeds_per_state

    @property
    def _seeds_per_state(self) -> int:
        return self.case.num_seeds if self.vmapped else 1

    def _next(self, i: int) -> Any:
        """Return the key of the next call, as JAX-CORL's scripts do: one per seed."""
        self.keys[i], *keys = jax.random.split(self.keys[i], 1 + self._seeds_per_state)
        return jnp.stack(keys) if self.vmapped else keys[0]

    def train(self, calls: int) -> dict[str, Any]:
        """Call ``update_n_times`` in JAX-CORL's loop, without its logs and evaluations."""
        start = time.perf_counter()
        for i in range(len(self.states)):
            for _ in range(calls):
                self.states[i], _ = self.update(self.states[i], self.data, self._next(i), self.config)
            jax.block_until_ready(self.states[i])
        seconds = time.perf_counter() - start
        updates = calls * self.config.n_jitted_updates * self.case.num_seeds
        return {"seconds": seconds, "updates": updates, "peak_bytes": peak_memory()}


def main(case_json: str, clone: str, how: str) -> None:
    side = Side(from_json(json.loads(case_json)), Path(clone), how == "vmapped")
    serve({"compile": side.compile, "train": side.train})


if __name__ == "__main__":
    main(*sys.argv[1:])
