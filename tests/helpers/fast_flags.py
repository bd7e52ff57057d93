"""XLA flags with which the tests' programs compile several times faster.

``python -m tests.helpers.fast_flags`` prints those that this jaxlib knows. XLA ends a process that gets an unknown flag."""

from __future__ import annotations

from jaxrl.xla.private_jax import known_options

FAST = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


def fast_flags() -> str:
    return " ".join(f"--{name}={str(value).lower()}" for name, value in known_options(FAST).items())


if __name__ == "__main__":
    print(fast_flags())
