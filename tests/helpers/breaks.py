"""Deliberate mistakes in the package. A named test file of ``make test`` must notice each of them.

``python -m tests.helpers.breaks [NUMBER ...]`` applies them one by one to a copy of the working tree, runs the file, and lists
those that survive. It takes about 20 minutes. Run it before and after removing tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.helpers.fast_flags import fast_flags
from tests.helpers.paths import ROOT


class Break(NamedTuple):
    file: str
    old: str
    new: str
    noticed_by: str


BREAKS = (
    Break(
        "returns.py", "delta_t, discount_t * lambda_t, jnp.zeros_like", "delta_t, discount_t, jnp.zeros_like", "core/test_returns"
    ),
    Break("returns.py", "jnp.minimum(ratio_t, rho_bar), lambda_t", "jnp.minimum(ratio_t, c_bar), lambda_t", "core/test_returns"),
    Break("rollout/autoreset.py", "    truncated &= ~terminated\n", "", "rollout/test_autoreset"),
    Break("rollout/autoreset.py", "length >= max_episode_steps", "length > max_episode_steps", "rollout/test_autoreset"),
    Break(
        "rollout/running_statistics.py",
        "delta**2 * count * number / merged",
        "delta**2 * count / merged",
        "rollout/test_running_statistics",
    ),
    Break("rollout/running_statistics.py", "jnp.where(rollout.valid, gamma, 1.0)", "gamma", "rollout/test_running_statistics"),
    Break("metrics.py", "Mean(x.sum + y.sum, x.count + y.count)", "Mean(x.sum + y.sum, x.count)", "core/test_metrics"),
    Break("optimize/minibatches.py", "(first + block) * num_epochs", "(0 * first + block) * num_epochs", "core/test_parallel"),
    Break(
        "optimize/minibatches.py", "pmean(mean(centred**2), axis_name) + 1e-8", "mean(centred**2) + 1e-8", "core/test_parallel"
    ),
    Break("algorithms/ppo.py", "target=advantage + value", "target=advantage", "algorithms/test_ppo"),
    Break("algorithms/ppo.py", "- hp.ent_coef * entropy", "+ hp.ent_coef * entropy", "algorithms/test_ppo_loss"),
    Break("algorithms/common/ppo_objectives.py", "outside & (clipped > error)", "clipped > error", "algorithms/test_ppo_loss"),
    Break("algorithms/common/q_learning.py", "(first + index + 1) %", "(first + index) %", "algorithms/test_dqn"),
    Break(
        "optimize/minibatches.py",
        ".sum(-1) < size",
        ".sum(-1) <= size",
        "algorithms/common/test_critic_ensemble",
    ),
    Break(
        "algorithms/common/temperature.py", "(entropy - target_entropy)", "(target_entropy - entropy)", "algorithms/test_sac_loss"
    ),
    Break("algorithms/common/temperature.py", "-hyperparams.box_entropy", "hyperparams.box_entropy", "algorithms/test_sac_loss"),
    Break(
        "replay/uniform.py",
        "(state.position - 1 - ring.after - age)",
        "(state.position - ring.after - age)",
        "replay/test_uniform",
    ),
    Break(
        "replay/uniform.py",
        "jnp.minimum(state.size + length, ring.capacity)",
        "jnp.minimum(state.size + length, ring.length)",
        "replay/test_uniform",
    ),
    Break("replay/prioritised.py", "jnp.maximum(state.highest,", "jnp.minimum(state.highest,", "replay/test_prioritised"),
    Break("replay/sequence.py", "eta * size.max(0) + (1.0 - eta)", "(1.0 - eta) * size.max(0) + eta", "replay/test_sequence"),
    Break("replay/hindsight.py", "ended=jnp.ones_like(state.ended)", "ended=state.ended", "replay/test_hindsight"),
    Break("exploration/epsilon_greedy.py", "1.0 + exponent * env_id", "exponent * env_id", "exploration/test_exploration"),
    Break(
        "exploration/action_noise.py",
        "inputs.is_first | (carry.age >= num_rows)",
        "carry.age >= num_rows",
        "algorithms/test_ppo_settings",
    ),
    Break("training.py", "goes_on = alive & is_finite", "goes_on = is_finite", "core/test_training"),
    Break("runtime/checkpoint/manifest.py", "if digest_found != digest:", "if False:", "runtime/checkpoint/test_damage"),
    Break("runtime/checkpoint/manifest.py", "info.run != run", "False", "runtime/checkpoint/test_ownership"),
    Break(
        "runtime/actors/dispatcher.py",
        "in self.members)) > self.max_restarts",
        "in self.members)) >= self.max_restarts",
        "runtime/actors/test_actors_faults",
    ),
    Break("runtime/training_loop/session.py", "np.where(self.diverged, np.nan, x)", "x", "runtime/training_loop/test_session"),
    Break(
        "runtime/training_loop/evaluations.py",
        "np.where(diverged, np.nan, np.asarray(x, np.float64).mean(1))",
        "np.asarray(x, np.float64).mean(1)",
        "runtime/training_loop/test_diverging_seeds",
    ),
    Break("settings/validation.py", "x > self.low if self.open_low else x >= self.low", "x >= self.low", "builder/test_config"),
    Break(
        "envs/wrappers/actions.py",
        "min(max_steps, env.max_episode_steps or max_steps)",
        "max_steps",
        "envs/wrappers/test_actions",
    ),
)


def apply(mistake: Break, package: Path) -> str:
    """Make the mistake in a copy of the package. Return the file's previous text.

    Raises:
      ValueError: The text to replace does not occur exactly once.
    """
    path = package / mistake.file
    text = path.read_text(encoding="utf-8")
    if text.count(mistake.old) != 1:
        raise ValueError(f"{mistake.file} holds {mistake.old!r} {text.count(mistake.old)} times; it must occur exactly once")
    path.write_text(text.replace(mistake.old, mistake.new), encoding="utf-8")
    return text


def notices(mistake: Break, tree: Path) -> bool:
    """Return True if the named test file fails."""
    environment = os.environ | {"PYTHONPATH": str(tree), "XLA_FLAGS": fast_flags()}
    tests = str(tree / "tests" / f"{mistake.noticed_by}.py")
    markers = "not learning and not chaos and not slow and not gpu"
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", markers, tests]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=900).returncode == 1


def main(arguments: Sequence[str]) -> int:
    """Try the mistakes with these numbers, or all. Return the number of survivors."""
    chosen = [int(argument) for argument in arguments] or range(len(BREAKS))
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv*", "runs", "site", "results", "__pycache__"))
        for number in chosen:
            mistake = BREAKS[number]
            before = apply(mistake, tree / "jaxrl")
            noticed = notices(mistake, tree)
            (tree / "jaxrl" / mistake.file).write_text(before, encoding="utf-8")
            survived += not noticed
            print(
                f"{number:3} {'noticed' if noticed else 'SURVIVED'}  {mistake.file}: {mistake.old} -> {mistake.new}", flush=True
            )
    return survived


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
