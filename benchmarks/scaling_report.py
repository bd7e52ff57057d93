"""Tables of ``scaling.json``: measurements, the fitted model beside them, and its predictions for more devices. Standard library
only."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.markdown import table
from benchmarks.numbers import paired, short, with_range
from benchmarks.scaling_model import Level, Link, Prediction, Work, all_reduce, fit, of_devices, predict, slowest_of, work_of

Result = Mapping[str, Any]
ASKED = 1.7
"""Required speedup of eight seeds on two devices over one of them."""
NAMES = {"2 devices": "2 devices of a process", "2 processes": "2 processes of a device"}
NUMBERS = {"2 devices": 2, "2 processes": 2, "4 processes": 4}


# ------------------------------------------------------------------------------------------------------------- measured values


def seeds_ratios(result: Result, than: str = "1 device") -> list[float]:
    """Return the speedup of training the seeds on two devices, round by round."""
    seconds = result["seeds"]["seconds"]
    return paired(seconds[than], seconds["2 devices"])


def missed(result: Result) -> bool:
    """Return True if two devices do not reach the required speedup."""
    return median(seeds_ratios(result)) < ASKED


def seeds_table(result: Result) -> str:
    """Return the table of seeds over devices."""
    part, rows = result["seeds"], []
    titles = {"2 devices": "2 devices", "1 device": "1 device", "one core": "1 device on one core"}
    for name, title in titles.items():
        rate = short(part["rows"] / median(part["seconds"][name]))
        if name == "2 devices":
            rows.append([title, rate, "", "", ""])
            continue
        ratios = seeds_ratios(result, name)
        asked = [f"≥ {ASKED:g}", "yes" if median(ratios) >= ASKED else "NO"] if name == "1 device" else ["", ""]
        rows.append([title, rate, with_range(ratios), *asked])
    title = f"{part['case']['num_seeds']} seeds of {part['case']['title'].partition(',')[0]}"
    legend = (
        "*1 device* is one of the process's two. XLA may still run its large kernels on threads of both cores. The requirement "
        "is for this ratio. *on one core*: another process, pinned to one core."
    )
    return table([title, "rows/s", "speedup of 2 devices", "required", "met"], rows) + "\n\n" + legend


class Shares(NamedTuple):
    """Efficiencies and costs of one seed over two devices: medians over rounds."""

    strong: float
    """Seconds for all rows on one device, over twice the seconds of two devices."""
    weak: float
    """Seconds for half of the rows on one device, over the seconds for all rows on two."""
    reducing: float
    """Share of the time that the all-reduces take by themselves."""
    difference: float
    """Share of the time saved if the devices do not communicate: all-reduces and waiting for each other."""


def shares(result: Result, group: str, base: str) -> Shares:
    """Compare the two devices of ``group`` with one device of ``base``."""
    base_seconds, group_seconds = (result["shared"]["seconds"][name] for name in (base, group))
    strong = [ratio / 2 for ratio in paired(base_seconds["whole"], group_seconds["shared"])]
    weak, apart = paired(base_seconds["half"], group_seconds["shared"]), paired(group_seconds["apart"], group_seconds["shared"])
    reducing = paired(group_seconds["all-reduces"], group_seconds["shared"])
    return Shares(median(strong), median(weak), median(reducing), 1 - median(apart))


def shared_table(result: Result) -> str:
    """Return the table of one seed's environments over devices."""
    part, rows = result["shared"], []
    for group, title in NAMES.items():
        spent = part["seconds"][group]
        counts = sum(times for _, times in part["all_reduces"][group])
        of_device, of_core = (shares(result, group, base) for base in ("2 devices", "one core"))
        rows.append(
            [
                title,
                f"{1e3 * median(spent['shared']):.1f}",
                f"{of_device.strong:.0%}, {of_core.strong:.0%}",
                f"{of_device.weak:.0%}, {of_core.weak:.0%}",
                f"{counts:,}",
                f"{of_core.reducing:.0%}",
                f"{of_core.difference:.0%}",
            ]
        )
    header = ["", "ms per iteration", "strong", "weak", "all-reduces", "by themselves", "by difference"]
    seconds = {name: part["seconds"][name] for name in ("2 devices", "one core")}
    alone = "; ".join(
        f"{title} takes {1e3 * median(seconds[name]['whole']):.1f} ms, "
        f"or {1e3 * median(seconds[name]['half']):.1f} for half of the rows"
        for name, title in (("2 devices", "one device"), ("one core", "one device on one core"))
    )
    legend = (
        f"{part['case']['title']}: {part['rows']:,} rows per iteration. {alone[0].upper()}{alone[1:]}. *strong*: the seconds of "
        "one device over twice those of two devices that share the same rows. *weak*: its seconds for half of the rows over "
        "those of two devices with half of the rows each. The first number is for a device that may use both cores, the second "
        "for a device on one core. *by themselves*: the share that a program with only these all-reduces takes. *by difference*: "
        "the share saved if each device trains a separate seed with half of the rows. This is the cost of the all-reduces and "
        "of waiting for each other."
    )
    return table(header, rows) + "\n\n" + legend


def points(result: Result, group: str) -> list[tuple[int, float]]:
    """Return (bytes, seconds) of all-reduces: medians over rounds."""
    return [(point["bytes"], median(point["seconds"])) for point in result["reducing"][group]]


def link(result: Result, group: str) -> Link:
    return fit(points(result, group), NUMBERS[group])


def reducing_table(result: Result) -> str:
    """Return the table of all-reduces and the fitted line. Four processes are compared with the line fitted to two."""
    two = link(result, "2 processes")
    models: dict[str, Callable[[float], float]] = {
        name: lambda size, name=name: all_reduce(size, [Level(NUMBERS[name], link(result, name))])  # type: ignore[misc]
        for name in NAMES
    }
    models["4 processes"] = lambda size: all_reduce(size, [Level(4, two)])
    rows = []
    measured = {name: dict(points(result, name)) for name in models}
    for size in measured["2 devices"]:
        cells = (f"{microseconds(measured[name][size])} ({microseconds(model(size))})" for name, model in models.items())
        rows.append([shown_bytes(size), *cells])
    fitted = [
        ["a hop", *(microseconds(link(result, name).hop) for name in models)],
        ["bandwidth, GB/s", *(bandwidth(link(result, name)) for name in models)],
    ]
    legend = (
        "Microseconds of an all-reduce, with the model's prediction in brackets: a line fitted to the column by relative errors. "
        "For 4 processes it is the line fitted to 2. The last two rows show each column's fit. 4 processes share this machine's "
        "cores."
    )
    return table(["all-reduce", *models], [*rows, *fitted]) + "\n\n" + legend


def bandwidth(found: Link) -> str:
    return f"{found.bandwidth / 1e9:.3g}" if math.isfinite(found.bandwidth) else "–"


def microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.3g}" if seconds < 1e-3 else f"{1e6 * seconds:,.0f}"


def shown_bytes(size: int) -> str:
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


# ------------------------------------------------------------------------------------------------------------------- the model


def measured_work(result: Result, group: str) -> Work:
    """Return the work of an iteration of one seed, as measured on one core, with the all-reduces of ``group``."""
    part, seconds = result["shared"], result["shared"]["seconds"]["one core"]
    return work_of(median(seconds["whole"]), median(seconds["half"]), part["rows"], part["all_reduces"][group])


def checked_table(result: Result) -> str:
    """Return a table that compares the model of one core and a link with two devices."""
    rows = []
    for group, title in NAMES.items():
        expected = predict(measured_work(result, group), [Level(2, link(result, group))], weak=False)
        found = median(result["shared"]["seconds"][group]["shared"])
        reducing = median(result["shared"]["seconds"][group]["all-reduces"])
        rows.append(
            [
                title,
                f"{1e3 * expected.compute:.1f}",
                f"{1e3 * expected.reducing:.2f} ({1e3 * reducing:.2f})",
                f"{1e3 * expected.seconds:.1f}",
                f"{1e3 * found:.1f}",
                f"{expected.seconds / found - 1:+.0%}",
            ]
        )
    header = ["ms per iteration", "compute", "all-reduces (measured)", "predicted", "measured", "error"]
    return table(header, rows)


class Cluster(NamedTuple):
    """An assumed cluster, for predictions. None of them was measured."""

    title: str
    assumed: str
    inner: Level
    """The devices of a host."""
    outer: Link
    """Link between hosts."""
    work: Work


ETHERNET = Link(50e-6, 10e9 / 8)
NVLINK, INFINIBAND = Link(3e-6, 300e9, "tree"), Link(10e-6, 200e9 / 8, "tree")
GPU_WORK = Work(0.04, 1 / 20e6, 65_536, ((36_624, 16), (20, 36)))
CNN_WORK = Work(0.04, 1 / 50e3, 16_384, ((6_746_624, 16), (20, 36)))
GPUS = "8 GPUs per host on NVLink (300 GB/s, 3 µs per hop), 200 Gbit/s and 10 µs between hosts, trees"


def clusters(result: Result) -> list[Cluster]:
    """Return the clusters of docs/scaling.md."""
    return [
        Cluster(
            "hosts of CPUs",
            "8 devices per host. Each is like one core of the machine measured here, with the link of two devices of a process. "
            "10 Gbit/s Ethernet, 50 µs per hop, rings. The iteration is the one measured",
            Level(8, link(result, "2 devices")),
            ETHERNET,
            measured_work(result, "2 devices"),
        ),
        Cluster(
            "GPUs, 2×64 units",
            f"{GPUS}. The same iteration: 40 ms to start its kernels, independent of the rows, plus 20 million rows/s",
            Level(8, NVLINK),
            INFINIBAND,
            GPU_WORK,
        ),
        Cluster(
            "GPUs, Nature's network",
            f"{GPUS}. 16,384 rows of Atari per iteration and 1.69 million parameters: 40 ms to start kernels, plus 50,000 rows/s",
            Level(8, NVLINK),
            INFINIBAND,
            CNN_WORK,
        ),
    ]


DEVICES = (8, 16, 64, 256, 1024)


def predicted_table(result: Result) -> str:
    """Return the model's efficiencies for more devices on the assumed clusters."""

    def cell(found: Prediction) -> str:
        return f"{found.efficiency:.0%} ({found.reducing / found.seconds:.0%})"

    rows, listed = [], clusters(result)
    for cluster in listed:
        for weak in (False, True):
            found = [predict(cluster.work, of_devices(n, cluster.inner, cluster.outer), weak=weak) for n in DEVICES]
            rows.append([f"{cluster.title}, {'weak' if weak else 'strong'}", *map(cell, found)])
    legend = "\n".join(f"* **{cluster.title}**: {cluster.assumed}." for cluster in listed)
    about = "Efficiency, with the all-reduces' share of the time in brackets. These machines were not measured. The assumptions:"
    return table(["devices", *map(str, DEVICES)], rows) + f"\n\n{about}\n\n{legend}"


VARIATIONS = (0.01, 0.05, 0.2)


def stragglers_table() -> str:
    """Return the efficiency of seeds over devices that wait for the slowest at the end of each chunk. Computed, not measured."""
    rows = [[f"{share:.0%}", *(f"{1 / slowest_of(n, share):.0%}" for n in DEVICES)] for share in VARIATIONS]
    return table(["seconds of a chunk vary by", *map(str, DEVICES)], rows)


# ----------------------------------------------------------------------------------------------------------------------- pages


def scaling_report(result: Result) -> str:
    """Return the result as Markdown."""
    lines = ["## Devices and processes", about(result)]
    lines += [make(result) for make in (seeds_table, shared_table, reducing_table, checked_table)]
    return "\n\n".join(lines)


def about(result: Result) -> str:
    hardware = result["hardware"]
    text = (
        f"* `{result['command']}`, {result['date']}\n* {hardware['cpu']}, {hardware['cores']} cores, "
        f"jax {result['versions']['jax']}, load before: {result['load']}\n"
        f"* Medians over {result['repeats']} rounds in which all sides take turns"
    )
    if result["scale"] != 1:
        text += (
            f"\n* Shortened to {result['scale']:g} of its length. This shows that everything works, and says nothing about speed"
        )
    return text


PAGE: dict[str, Callable[[Result], str]] = {
    "about": about,
    "seeds": seeds_table,
    "shared": shared_table,
    "reducing": reducing_table,
    "checked": checked_table,
    "predicted": predicted_table,
}


def page_part(name: str, folder: Path) -> str:
    """Return a table of docs/scaling.md, or the command that measures it."""
    if name == "stragglers":
        return stragglers_table()
    path = folder / "scaling.json"
    if not path.exists():
        return "*Not measured yet. Run `python -m benchmarks scaling`.*"
    return PAGE[name](json.loads(path.read_text(encoding="utf-8")))
