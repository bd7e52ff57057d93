"""Tables of ``scaling.json``: what was measured, the model of it beside it, and what it says of more devices. Standard library
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
"""Times as many rows per second of eight seeds on two devices as on one of them."""
NAMES = {"2 devices": "2 devices of a process", "2 processes": "2 processes of a device"}
NUMBERS = {"2 devices": 2, "2 processes": 2, "4 processes": 4}


# ----------------------------------------------------------------------------------------------------------- what was measured


def seeds_ratios(result: Result, than: str = "1 device") -> list[float]:
    """How many times as fast two devices train the seeds, round by round."""
    seconds = result["seeds"]["seconds"]
    return paired(seconds[than], seconds["2 devices"])


def missed(result: Result) -> bool:
    """Whether two devices are less worth than is asked."""
    return median(seeds_ratios(result)) < ASKED


def seeds_table(result: Result) -> str:
    """Seeds over devices."""
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
        "Of *1 device*, one of the process's two, XLA may still give a large kernel to threads on both cores; this is what is "
        "asked. *on one core*: another process, held to a core."
    )
    return table([title, "rows/s", "2 devices are × as fast", "asked", "met"], rows) + "\n\n" + legend


class Shares(NamedTuple):
    """Of one seed over two devices: medians of rounds."""

    strong: float
    """Seconds of all rows on one device, over twice those of two."""
    weak: float
    """Seconds of half of the rows on one device, over those of all on two."""
    reducing: float
    """The share of the all-reduces, by themselves."""
    more: float
    """The share that goes when the devices say nothing to each other: what they wait for each other as well."""


def shares(result: Result, group: str, base: str) -> Shares:
    """Of the two devices of a group, beside one of ``base``."""
    one, two = (result["shared"]["seconds"][name] for name in (base, group))
    strong = [ratio / 2 for ratio in paired(one["whole"], two["shared"])]
    weak, apart = paired(one["half"], two["shared"]), paired(two["apart"], two["shared"])
    reducing = paired(two["all-reduces"], two["shared"])
    return Shares(median(strong), median(weak), median(reducing), 1 - median(apart))


def shared_table(result: Result) -> str:
    """The environments of one seed over devices."""
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
                f"{of_core.more:.0%}",
            ]
        )
    header = ["", "ms an iteration", "strong", "weak", "all-reduces", "by themselves", "by difference"]
    one = {name: part["seconds"][name] for name in ("2 devices", "one core")}
    alone = "; ".join(
        f"{title} takes {1e3 * median(one[name]['whole']):.1f} ms, and for half of the rows {1e3 * median(one[name]['half']):.1f}"
        for name, title in (("2 devices", "one device"), ("one core", "one device on one core"))
    )
    legend = (
        f"{part['case']['title']}: {part['rows']:,} rows an iteration. {alone[0].upper()}{alone[1:]}. *strong*: its seconds over "
        "twice those of two devices with the same rows between them; *weak*: its seconds for half of the rows over those of two "
        "that have as many each; first of one device that may use both cores, then of one on one core. *by themselves*: the "
        "share of a program of these all-reduces and nothing else. *by difference*: the share that goes where each device trains "
        "a seed of its own, of half of the rows: the all-reduces with all waiting for each other."
    )
    return table(header, rows) + "\n\n" + legend


def points(result: Result, group: str) -> list[tuple[int, float]]:
    """(bytes, seconds) of all-reduces: medians of rounds."""
    return [(point["bytes"], median(point["seconds"])) for point in result["reducing"][group]]


def link(result: Result, group: str) -> Link:
    return fit(points(result, group), NUMBERS[group])


def reducing_table(result: Result) -> str:
    """All-reduces by themselves, beside the line through them; those of four processes beside what two say of them."""
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
        "Microseconds of an all-reduce, in brackets what the model says: the line through the column, by its relative errors; of "
        "4 processes, that of 2. Each column's own line is below. 4 processes share this machine's cores."
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
    """An iteration of one seed, as one core does it, with the all-reduces of a group."""
    part, one = result["shared"], result["shared"]["seconds"]["one core"]
    return work_of(median(one["whole"]), median(one["half"]), part["rows"], part["all_reduces"][group])


def checked_table(result: Result) -> str:
    """The model of one core and of a link, beside two devices."""
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
    header = ["ms an iteration", "compute", "all-reduces (measured)", "predicted", "measured", "error"]
    return table(header, rows)


class Cluster(NamedTuple):
    """Machines that nobody measured."""

    title: str
    assumed: str
    inner: Level
    """Of a host's devices."""
    outer: Link
    """Between hosts."""
    work: Work


ETHERNET = Link(50e-6, 10e9 / 8)
NVLINK, INFINIBAND = Link(3e-6, 300e9, "tree"), Link(10e-6, 200e9 / 8, "tree")
GPU_WORK = Work(0.04, 1 / 20e6, 65_536, ((36_624, 16), (20, 36)))
CNN_WORK = Work(0.04, 1 / 50e3, 16_384, ((6_746_624, 16), (20, 36)))
GPUS = "8 GPUs a host on NVLink (300 GB/s, 3 µs a hop), 200 Gbit/s and 10 µs between hosts, trees"


def clusters(result: Result) -> list[Cluster]:
    """What the page predicts for."""
    return [
        Cluster(
            "hosts of CPUs",
            "8 devices a host, each as one core here and linked as two devices of a process are here; 10 Gbit/s Ethernet, 50 µs "
            "a hop, rings. The iteration is the one that was measured",
            Level(8, link(result, "2 devices")),
            ETHERNET,
            measured_work(result, "2 devices"),
        ),
        Cluster(
            "GPUs, 2×64 units",
            f"{GPUS}. The same iteration: 40 ms to start its kernels, however many rows, and 20 million rows/s beyond that",
            Level(8, NVLINK),
            INFINIBAND,
            GPU_WORK,
        ),
        Cluster(
            "GPUs, Nature's network",
            f"{GPUS}. 16,384 rows of Atari an iteration, of 1.69 million parameters: 40 ms to start kernels, and 50,000 rows/s",
            Level(8, NVLINK),
            INFINIBAND,
            CNN_WORK,
        ),
    ]


DEVICES = (8, 16, 64, 256, 1024)


def predicted_table(result: Result) -> str:
    """Efficiencies of more devices, by the model, of machines that are assumed."""

    def cell(found: Prediction) -> str:
        return f"{found.efficiency:.0%} ({found.reducing / found.seconds:.0%})"

    rows, listed = [], clusters(result)
    for cluster in listed:
        for weak in (False, True):
            found = [predict(cluster.work, of_devices(n, cluster.inner, cluster.outer), weak=weak) for n in DEVICES]
            rows.append([f"{cluster.title}, {'weak' if weak else 'strong'}", *map(cell, found)])
    legend = "\n".join(f"* **{cluster.title}**: {cluster.assumed}." for cluster in listed)
    about = "Efficiency, and in brackets the all-reduces' share of the seconds. No such machine was measured: what is assumed is"
    return table(["devices", *map(str, DEVICES)], rows) + f"\n\n{about}\n\n{legend}"


VARIATIONS = (0.01, 0.05, 0.2)


def stragglers_table() -> str:
    """Seeds over devices that wait for the slowest at the end of each chunk: arithmetic alone."""
    rows = [[f"{share:.0%}", *(f"{1 / slowest_of(n, share):.0%}" for n in DEVICES)] for share in VARIATIONS]
    return table(["seconds of a chunk vary by", *map(str, DEVICES)], rows)


# ----------------------------------------------------------------------------------------------------------------------- pages


def scaling_report(result: Result) -> str:
    """The result as Markdown."""
    lines = ["## Devices and processes", about(result)]
    lines += [make(result) for make in (seeds_table, shared_table, reducing_table, checked_table)]
    return "\n\n".join(lines)


def about(result: Result) -> str:
    hardware = result["hardware"]
    text = (
        f"* `{result['command']}`, {result['date']}\n* {hardware['cpu']}, {hardware['cores']} cores, "
        f"jax {result['versions']['jax']}, load before: {result['load']}\n"
        f"* Medians of {result['repeats']} rounds in which all sides take turns"
    )
    if result["scale"] != 1:
        text += f"\n* Shortened to {result['scale']:g} of its length: this shows that everything works, and no speed"
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
    """A table of docs/scaling.md, or what makes it."""
    if name == "stragglers":
        return stragglers_table()
    path = folder / "scaling.json"
    if not path.exists():
        return "*Not measured yet: `python -m benchmarks scaling` does it.*"
    return PAGE[name](json.loads(path.read_text(encoding="utf-8")))
