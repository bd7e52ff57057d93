"""The worker that counts a case's kernels and arithmetic, and times the machine's matrix products."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Case
from benchmarks.hlo import Program
from benchmarks.jaxrl_side import make_agent
from benchmarks.matmuls import matmul_flops, matmul_rate
from benchmarks.protocol import serve
from jaxrl.agent import state_shapes
from jaxrl.runtime.drivers.fused import FusedDriver
from jaxrl.runtime.system.devices import request_cpu_devices, seed_devices
from jaxrl.training import num_iterations


def count_kernels(**case: Any) -> dict[str, Any]:
    """Of the program of ``jaxrl.run`` for a case; nothing is run."""
    given = Case(**case)
    driver = FusedDriver(make_agent(given), range(given.num_seeds), seed_devices(given.num_seeds)[0])
    return Program(driver.compile_iterate(driver.shapes()).as_text()).counts()._asdict()


def count_flops(**case: Any) -> dict[str, Any]:
    """Of the matrix products in a timed section: all iterations of all seeds and runs."""
    given = Case(**case)
    agent = make_agent(given)
    iterations = num_iterations(agent, given.total_steps) * given.num_seeds * given.runs_per_section
    return {"flops": iterations * matmul_flops(agent.step, state_shapes(agent))}


def main() -> None:
    request_cpu_devices()
    serve({"kernels": count_kernels, "flops": count_flops, "rate": lambda: {"flops_per_second": matmul_rate()}})


if __name__ == "__main__":
    main()
