"""Output of ``jaxrl eval --data``: estimated values of policies, as a table and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl.runtime.evaluation.estimate_runs import RunValues

COLUMNS = ("run", "algorithm", "seed", "value", "standard error", "discount")


def report_values(results: Sequence[RunValues], settings: dict[str, Any], file: str | None) -> None:
    """Print the table and write the JSON file if requested; print only the JSON if it goes to the standard output.

    Args:
      settings: options of the command.
      file: of the JSON, '-' for the standard output; None for none.
    """
    from jaxrl.runtime.console.progress import number
    from jaxrl.runtime.console.tables import show_table
    from jaxrl.runtime.system.disk import absolute

    text = json.dumps(as_json(results, settings), indent=1, allow_nan=False) + "\n"
    if file == "-":
        sys.stdout.write(text)
        return
    if file:
        absolute(file).write_text(text, encoding="utf-8")  # it may be /dev/null or a pipe
    how = "exploring" if settings["explore"] else "greedy"
    print(f"estimated values of {how} {settings['which']} policies, discounted and without a time limit\n")
    rows = []
    for result in results:
        for seed, found, gamma in zip(result.seeds, result.estimates, result.gammas, strict=True):
            value, error = (number(x, found.value) for x in (found.value, found.standard_error))
            rows.append([result.run, result.algorithm, str(seed), value, error, f"{gamma:g}"])
    show_table(COLUMNS, rows)
    for result in results:
        print(f"{result.run}: {result.about}")
        if result.diverged:
            print(f"{result.run}: without the seeds {', '.join(map(str, result.diverged))}, which diverged")
    if file:
        print(f"\nwritten to {file}")


def as_json(results: Sequence[RunValues], settings: dict[str, Any]) -> dict[str, Any]:
    """Return plain data: settings, versions, and for each run its values, [num_seeds], with their standard errors."""
    from jaxrl.runtime.logs.provenance import installed_versions
    from jaxrl.runtime.logs.run_folder import plain, without_nan

    runs = [
        {
            **{name: getattr(result, name) for name in ("run", "algorithm", "iteration", "seeds", "diverged")},
            "trained_with": result.versions,
            "gamma_per_seed": result.gammas,
            "value_per_seed": [found.value for found in result.estimates],
            "standard_error_per_seed": [found.standard_error for found in result.estimates],
            "values": [found.values for found in result.estimates],
            "td_loss": [found.td_loss for found in result.estimates],
        }
        for result in results
    ]
    return {"settings": settings, "versions": installed_versions(), "runs": without_nan(plain(runs))}
