"""The worker that counts a case's kernels and arithmetic, and times the machine's matrix products and its starts of kernels."""

from __future__ import annotations

from typing import Any

import jax

from benchmarks.cases import Case
from benchmarks.hlo import Program
from benchmarks.jaxrl_side import make_agent, updates_alone
from benchmarks.matmuls import matmul_flops, matmul_rate
from benchmarks.protocol import serve
from benchmarks.starts import kernel_seconds
from jaxrl.agent import state_shapes
from jaxrl.runtime.drivers.layout import open_fused
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.training import num_iterations


def count_kernels(**case: Any) -> dict[str, Any]:
    """Of the program of ``jaxrl.run`` for a case; nothing is run."""
    given = Case(**case)
    driver = open_fused(make_agent(given), range(given.num_seeds))[0]
    return Program(driver.compile_iterate(driver.shapes()).as_text()).counts()._asdict()


def count_flops(**case: Any) -> dict[str, Any]:
    """Of the matrix products in a timed section, all iterations of all seeds and runs; and in the updates of one iteration."""
    given = Case(**case)
    agent = make_agent(given)
    updates = updates_alone(agent)
    iterations = num_iterations(agent, given.total_steps) * given.num_seeds * given.runs_per_section
    return {
        "matmul_flops": iterations * matmul_flops(agent.step, state_shapes(agent)),
        "update_matmul_flops": given.num_seeds * matmul_flops(updates.step, state_shapes(updates)),
    }


def machine_rates() -> dict[str, Any]:
    """What the machine does at best: products of f32 matrices, and kernels that have nothing to do."""
    on_cpu = jax.default_backend() == "cpu"
    return {"matmul_flops_per_second": matmul_rate()} | ({"kernel_seconds": kernel_seconds()} if on_cpu else {})


def main() -> None:
    request_cpu_devices()
    serve({"kernels": count_kernels, "flops": count_flops, "rates": machine_rates})


if __name__ == "__main__":
    main()
