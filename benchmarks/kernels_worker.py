"""Worker that counts a case's kernels and arithmetic, and times matrix products and kernel starts separately."""

from __future__ import annotations

from typing import Any

import jax

from benchmarks.cases import Case
from benchmarks.experiments import EXPERIMENTS
from benchmarks.hlo import Program
from benchmarks.hlo_bytes import Traffic
from benchmarks.jaxrl_side import make_agent, updates_alone
from benchmarks.matmuls import matmul_rate
from benchmarks.products import all_flops_of, flops_of, seconds_of
from benchmarks.protocol import serve
from benchmarks.scores import build_agent
from benchmarks.starts import kernel_seconds
from jaxrl.agent import state_shapes
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.runtime.trainers.device_layout import open_fused
from jaxrl.runtime.trainers.fused import CPU_OPTIONS, FusedDriver
from jaxrl.training import num_iterations
from jaxrl.xla.private_jax import known_options

QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Compiler options for slow code that compiles quickly. They act after kernels are formed, so they do not change the counts."""


def count_kernels(**fields: Any) -> dict[str, Any]:
    """Count the kernels of ``jaxrl.run``'s program for a case, without running it."""
    case = Case(**fields)
    return program_of(open_fused(make_agent(case), range(case.num_seeds))[0]).counts()._asdict()


def program_of(driver: FusedDriver) -> Program:
    """Return the compiled program that trains for some iterations."""
    driver.compiler_options = known_options(CPU_OPTIONS | QUICK)
    return Program(driver.compile_iterate(driver.shapes()).as_text())


def count_work(preset: str) -> dict[str, Any]:
    """Count the work of an iteration of a preset, for one seed on one device."""
    agent = build_agent(EXPERIMENTS[preset])
    program = program_of(FusedDriver(agent, [0], jax.devices()[:1]))
    iteration = program.loop_over_iterations().called[1]
    return {
        "rows": agent.steps_per_iteration,
        "kernels": program.kernels(iteration),
        "bytes": Traffic(program).of(iteration),
        "flops": all_flops_of(agent.step, state_shapes(agent)),
    }


def count_flops(**fields: Any) -> dict[str, Any]:
    """Count the floating-point operations of matrix products in a timed section (all iterations, seeds and runs), and in the
    updates of one iteration."""
    case = Case(**fields)
    agent = make_agent(case)
    updates = updates_alone(agent)
    iterations = num_iterations(agent, case.total_steps) * case.num_seeds * case.runs_per_section
    return {
        "matmul_flops": iterations * flops_of(agent.step, state_shapes(agent)),
        "update_matmul_flops": case.num_seeds * flops_of(updates.step, state_shapes(updates)),
    }


def time_products(**fields: Any) -> dict[str, Any]:
    """Time the matrix products in the updates of one iteration, for all seeds that share a device.

    Return an empty dict if a seed uses several devices.
    """
    case = Case(**fields)
    updates = updates_alone(make_agent(case))
    _, layout = open_fused(updates, range(case.num_seeds))
    if layout.devices_per_seed > 1:
        return {}
    seeds = -(-case.num_seeds // len(layout.devices))
    states = jax.tree.map(lambda x: jax.ShapeDtypeStruct((seeds, *x.shape), x.dtype), state_shapes(updates))
    return {"update_product_seconds": seconds_of(jax.vmap(updates.step), states)}


def machine_rates() -> dict[str, Any]:
    """Measure the machine's best rates: products of f32 matrices, and starts of empty kernels."""
    on_cpu = jax.default_backend() == "cpu"
    return {"matmul_flops_per_second": matmul_rate()} | ({"kernel_seconds": kernel_seconds()} if on_cpu else {})


def main() -> None:
    request_cpu_devices()
    serve(
        {
            "kernels": count_kernels,
            "flops": count_flops,
            "work": count_work,
            "products": time_products,
            "rates": machine_rates,
        }
    )


if __name__ == "__main__":
    main()
