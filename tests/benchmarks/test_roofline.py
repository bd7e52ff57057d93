"""The roofline: bytes of a program and operations counted by hand, and the bounds that follow from them."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import roofline
from benchmarks.__main__ import main
from benchmarks.hlo import Program
from benchmarks.hlo_bytes import Traffic
from benchmarks.products import all_flops_of, flops_of

PROGRAM = Program("""
%takes (f.0: f32[100,8], f.1: s32[], f.2: f32[8]) -> f32[8] {
  %f.1 = s32[] parameter(1)
  %f.0 = f32[100,8]{1,0} parameter(0)
  %f.2 = f32[8]{0} parameter(2)
  %dynamic-slice.1 = f32[1,8]{1,0} dynamic-slice(%f.0, %f.1, %f.1), dynamic_slice_sizes={1,8}
  %bitcast.1 = f32[8]{0} bitcast(%dynamic-slice.1)
  ROOT %add.1 = f32[8]{0} add(%bitcast.1, %f.2)
}

%puts (g.0: f32[100,8], g.1: f32[8], g.2: s32[]) -> f32[100,8] {
  %g.0 = f32[100,8]{1,0} parameter(0)
  %g.1 = f32[8]{0} parameter(1)
  %g.2 = s32[] parameter(2)
  %negate.1 = f32[8]{0} negate(%g.1)
  %bitcast.2 = f32[1,8]{1,0} bitcast(%negate.1)
  ROOT %dynamic-update-slice.1 = f32[100,8]{1,0} dynamic-update-slice(%g.0, %bitcast.2, %g.2, %g.2)
}

%row (r: (f32[100,8], f32[8], s32[])) -> (f32[100,8], f32[8], s32[]) {
  %r = (f32[100,8]{1,0}, f32[8]{0}, s32[]) parameter(0)
  %buffer = f32[100,8]{1,0} get-tuple-element(%r), index=0
  %weights = f32[8]{0} get-tuple-element(%r), index=1
  %step = s32[] get-tuple-element(%r), index=2
  %taken = f32[8]{0} fusion(%buffer, %step, %weights), kind=kLoop, calls=%takes
  %put = f32[100,8]{1,0} fusion(%buffer, %taken, %step), kind=kLoop, calls=%puts
  ROOT %tuple.1 = (f32[100,8]{1,0}, f32[8]{0}, s32[]) tuple(%put, %taken, %step)
}

ENTRY %main (x: (f32[100,8], f32[8], s32[])) -> f32[8] {
  %x = (f32[100,8]{1,0}, f32[8]{0}, s32[]) parameter(0)
  %while.1 = (f32[100,8]{1,0}, f32[8]{0}, s32[]) while(%x), condition=%c, body=%row, backend_config={"known_trip_count":{"n":"5"}}
  %matrix = f32[100,8]{1,0} get-tuple-element(%while.1), index=0
  %vector = f32[8]{0} get-tuple-element(%while.1), index=1
  ROOT %dot.1 = f32[100]{0} dot(%matrix, %vector), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
""")


def test_bytes_of_a_program_by_hand() -> None:
    vector, number, matrix = 8 * 4, 4, 100 * 8 * 4
    takes = vector + number + vector + vector  # one row of the buffer, the index, the weights; writes a row
    puts = vector + number + vector  # the row and the index; writes a row of the buffer in place
    assert Traffic(PROGRAM).of("row") == takes + puts
    assert Traffic(PROGRAM).of("main") == 5 * (takes + puts) + matrix + vector + 100 * 4


def test_convolutions_count_as_operations_and_not_as_products() -> None:
    def function(image: jax.Array, kernel: jax.Array, weights: jax.Array) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        seen = jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID", dimension_numbers=numbers)
        return seen.reshape(2, -1) @ weights

    image, kernel, weights = jnp.ones((2, 10, 10, 4)), jnp.ones((3, 3, 4, 16)), jnp.ones((8 * 8 * 16, 5))
    product = 2 * 2 * (8 * 8 * 16) * 5
    assert flops_of(function, image, kernel, weights) == product
    assert all_flops_of(function, image, kernel, weights) == product + 2 * (2 * 8 * 8 * 16) * (3 * 3 * 4)


@pytest.mark.parametrize(
    ("work", "seeds", "limit", "rate"),
    [
        ({"rows": 100, "kernels": 1_000, "bytes": 1e6, "flops": 1e6}, 1, "starts", 100 / 1.5e-3),
        ({"rows": 100, "kernels": 1_000, "bytes": 3.35e9, "flops": 1e6}, 2, "bytes", 2 * 100 / 2e-3),
        ({"rows": 100, "kernels": 1, "bytes": 1e6, "flops": 495e9}, 4, "operations", 4 * 100 / 4e-3),
    ],
)
def test_the_slowest_of_starts_bytes_and_operations_is_the_bound(
    work: dict[str, float], seeds: int, limit: str, rate: float
) -> None:
    seconds = roofline.limits(work, roofline.DEVICES[0], seeds)
    assert max(seconds, key=seconds.__getitem__) == limit
    np.testing.assert_allclose(seeds * work["rows"] / seconds[limit], rate)


def test_hosts_datasets_and_evolution_have_no_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"ppo-cartpole", "sac-pendulum", "alphazero-tictactoe"} <= {*roofline.FIT}
    for name in ("sac-halfcheetah", "bc-pendulum-expert", "es-cartpole"):
        with pytest.raises(SystemExit):
            main(["roofline", name])
        assert f"unknown preset with environments in JAX that learns from gradients '{name}'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_counts_a_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roofline", "a2c-cartpole", "--out", str(tmp_path)]) == 0
    report = capsys.readouterr().out
    assert "| a2c-cartpole |" in report and "H100, 256 seeds" in report
    assert (tmp_path / "roofline.json").exists() and "a2c-cartpole" in (tmp_path / "TABLES.md").read_text()
