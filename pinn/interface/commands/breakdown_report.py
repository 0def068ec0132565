"""A step's breakdown: gathered, printed and written as CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from pinn.interface.commands.batch_marks import batch_marks, marks_lines
from pinn.interface.commands.recipe_report import notices
from pinn.kernels.evidence import KernelUse
from pinn.specs.batch import parse_batch
from pinn.specs.deployment import Deployment
from pinn.specs.files.csv_cells import write_rows
from pinn.specs.files.screen import WIDEST, page, say
from pinn.training.teacher.breakdown import DRAFTING, PART_OF_FEATURE, PARTS, Breakdown
from pinn.units import MICROSECOND

#: Closer than this ratio, a kernel counts as measured.
NEAR = 1.1
#: Steps that a table has side by side.
_ABREAST = 2
_MORE = (
    "More: --explain (what parts hold; the step composed of measured kernels), --plot, --csv, "
    "--json FILE."
)
CSV_COLUMNS = (
    "batch", "kind", "name", "part", "network_us", "composed_us", "format", "sizes", "runs",
    "us_each", "nearest_gpu", "nearest_format", "nearest_sizes", "stretch",
)  # fmt: skip


def make_report(
    deployment: Deployment, breakdowns: Sequence[Breakdown], sources: Mapping[str, str]
) -> dict[str, Any]:
    """Everything about the steps of one configuration, ready for JSON; times in microseconds.

    ``stretch`` is the largest ratio between a size and that of the nearest measured kernel, either
    way: 1 where the kernel itself was measured.

    Args:
        deployment: Model, GPU and configuration.
        breakdowns: Of each batch.
        sources: What the breakdowns were made from, in words.
    """
    steps = [
        _step(found) | {"marks": batch_marks(parse_batch(found.batch), deployment)}
        for found in breakdowns
    ]
    return {
        "model": deployment.model.name,
        "asked_as": deployment.model.title,
        "gpu": deployment.gpu.name,
        "serving": asdict(deployment.serving),
        **notices(deployment.serving),
        "sources": dict(sources),
        "steps": steps,
    }


def _step(found: Breakdown) -> dict[str, Any]:
    composed = found.composed
    return {
        "batch": found.batch,
        "floor_us": found.floor / MICROSECOND,
        "network_us": sum(found.network.values()) / MICROSECOND,
        "composed_us": None if composed is None else sum(composed.values()) / MICROSECOND,
        "parts": [
            {
                "part": part,
                "network_us": found.network[part] / MICROSECOND,
                "composed_us": None if composed is None else composed[part] / MICROSECOND,
            }
            for part in found.network
        ],
        "features": [
            {
                "feature": name,
                "part": _part_of(name),
                "network_us": seconds / MICROSECOND,
            }
            for name, seconds in found.features.items()
        ],
        "kernels": [_kernel(use) for use in found.kernels],
    }


def _part_of(feature: str) -> str:
    part = PART_OF_FEATURE[feature]
    return part if part in PARTS else "weights and matmul_arithmetic"


def _kernel(use: KernelUse) -> dict[str, Any]:
    near = use.nearest
    return {
        "operator": use.operator,
        "format": use.precision,
        "sizes": dict(use.sizes),
        "runs": use.count,
        "us_each": use.seconds / MICROSECOND,
        "composed_us": use.total_seconds / MICROSECOND,
        "nearest": None
        if near is None
        else {"gpu": near.gpu, "format": near.precision, "sizes": dict(near.shape)},
        "stretch": None if near is None else math.exp(near.stretch),
    }


def write_csv(report: dict[str, Any], path: Path) -> None:
    """Write parts, step features and kernels of every step, one line each, told by ``kind``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows((line for step in report["steps"] for line in _csv_lines(step)), CSV_COLUMNS, path)


def _csv_lines(step: dict[str, Any]) -> list[dict[str, Any]]:
    lines = [{**entry, "kind": "part", "name": entry["part"]} for entry in step["parts"]]
    for entry in step["features"]:
        line = {"kind": "feature", "name": entry["feature"], **entry}
        lines.append({k: v for k, v in line.items() if k != "feature"})
    for entry in step["kernels"]:
        near = entry["nearest"] or {"gpu": None, "format": None, "sizes": {}}
        line = {k: entry[k] for k in ("composed_us", "format", "runs", "us_each", "stretch")}
        lines.append(
            line
            | {"kind": "kernel", "name": entry["operator"], "sizes": sizes_text(entry["sizes"])}
            | {f"nearest_{k}": near[k] for k in ("gpu", "format")}
            | {"nearest_sizes": sizes_text(near["sizes"])}
        )
    return [{"batch": step["batch"], **line} for line in lines]


def sizes_text(sizes: Mapping[str, float]) -> str:
    """Sizes as words, whole numbers as such."""
    return " ".join(
        f"{name} {size:.0f}" if size == int(size) else f"{name} {size:.6g}"
        for name, size in sizes.items()
    )


def nearest_text(kernel: Mapping[str, Any]) -> str:
    """Where the nearest kernel was measured, and the sizes in which it differs."""
    near = kernel["nearest"]
    if near is None:
        return "not measured anywhere"
    differ = {k: v for k, v in near["sizes"].items() if v != kernel["sizes"].get(k)}
    return f"{near['gpu']} {near['format']}: {sizes_text(differ) or 'same shape'}"


def print_report(report: dict[str, Any], explain: bool = False) -> None:
    """Print the report for people: the parts of each step, and how much of it was measured.

    Args:
        report: Of :func:`make_report`.
        explain: Beside them the composed step, what each part holds, and the kernels.
    """
    flags = ", ".join(f"{k} {v}" for k, v in report["serving"].items() if _worth_showing(k, v))
    say(f"{report['asked_as']} on {report['gpu']}: {flags}")
    if explain or "missing" in report["sources"].get("kernels", ""):
        for what, source in report["sources"].items():
            say(f"{what}: {source}")
    if explain:
        _print_whole(report)
        return
    steps = report["steps"]
    for first in range(0, len(steps), _ABREAST):
        say("")
        page().print(_steps_table(steps[first : first + _ABREAST]))
    say("")
    for line in marks_lines(steps):
        say(line)
    for step in steps:
        if step["kernels"]:
            say(f"{step['batch']}: {_rests_on(step['kernels'], report['gpu'])}")
    say(_MORE)


def _steps_table(steps: Sequence[dict[str, Any]]) -> Table:
    """The parts of steps side by side, as the network has them, and the datasheet's floor."""
    table = Table("part of a step", box=None, pad_edge=False)
    for step in steps:
        table.add_column(f"{step['batch']}: us", justify="right", max_width=20)
        table.add_column("%", justify="right")
    totals = [step["network_us"] for step in steps]
    names = dict.fromkeys(entry["part"] for step in steps for entry in step["parts"])
    for name in names:
        values = [{e["part"]: e["network_us"] for e in step["parts"]}.get(name) for step in steps]
        pairs = zip(values, totals, strict=True)
        table.add_row(name, *(cell for pair in pairs for cell in _cells(*pair)))
    table.add_row("step", *(cell for value in totals for cell in _cells(value, value)))
    floors = zip((step["floor_us"] for step in steps), totals, strict=True)
    table.add_row("least the datasheet allows", *(c for pair in floors for c in _cells(*pair)))
    return table


def _print_whole(report: dict[str, Any]) -> None:
    for step in report["steps"]:
        say("")
        page(WIDEST).print(_parts_table(step))
        for line in marks_lines([step]):
            say(line)
        if step["kernels"]:
            say("")
            page(WIDEST).print(_kernels_table(step["kernels"]))
            say(_rests_on(step["kernels"], report["gpu"]))


def _worth_showing(name: str, value: Any) -> bool:
    return name.endswith("parallel_size") or (name == "enable_expert_parallel" and value)


def _parts_table(step: dict[str, Any]) -> Table:
    title = f"{step['batch']}: where the microseconds go (floor {step['floor_us']:.0f} us)"
    table = Table("part", title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("network us", "%", "composed us", "%"):
        table.add_column(heading, justify="right")
    table.add_column("what it holds")
    total = {key: step[key] for key in ("network_us", "composed_us")}
    for entry in step["parts"]:
        cells = [cell for key in total for cell in _cells(entry[key], total[key])]
        table.add_row(entry["part"], *cells, (PARTS | DRAFTING)[entry["part"]])
    table.add_row("step", *(cell for value in total.values() for cell in _cells(value, value)))
    return table


def _cells(value: float | None, total: float | None) -> tuple[str, str]:
    if value is None or total is None:
        return "-", "-"
    return f"{value:.0f}", f"{100 * value / total:.0f}"


def _kernels_table(kernels: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        "kernel", title="measured kernels behind it", title_justify="left", box=None, pad_edge=False
    )
    for heading in ("runs", "us each", "us"):
        table.add_column(heading, justify="right")
    table.add_column("nearest measured")
    table.add_column("size off by", justify="right")
    for entry in kernels:
        stretch = "-" if entry["stretch"] is None else f"x {entry['stretch']:.2f}"
        table.add_row(
            f"{entry['operator']} {entry['format']} {sizes_text(_telling(entry['sizes']))}",
            f"{entry['runs']:.0f}",
            f"{entry['us_each']:.1f}",
            f"{entry['composed_us']:.0f}",
            nearest_text(entry),
            stretch,
        )
    return table


_USUAL = {"window": 0.0, "matrices": 3.0, "tensor_parallel": 1.0, "expert_parallel": 1.0}


def _telling(sizes: Mapping[str, float]) -> dict[str, float]:
    """Sizes without those that say nothing: no window, a gate, no parallelism."""
    return {k: v for k, v in sizes.items() if _USUAL.get(k) != v}


def _rests_on(kernels: Sequence[dict[str, Any]], gpu: str) -> str:
    """How much of the kernels' time was measured, in one sentence."""
    total = sum(k["composed_us"] for k in kernels)
    near = sum(k["composed_us"] for k in kernels if k["nearest"] and _is_near(k, gpu))
    far = max((k for k in kernels if k["stretch"]), key=lambda k: k["stretch"], default=None)
    text = (
        f"{100 * near / total:.0f} % of the kernels' time is within x {NEAR} of a kernel measured "
        f"on {gpu} in the same format"
    )
    if far is None:
        return f"{text}."
    return f"{text}; the farthest, {far['operator']}, is off by a factor of {far['stretch']:.2f}."


def _is_near(kernel: Mapping[str, Any], gpu: str) -> bool:
    near = kernel["nearest"]
    same = near["gpu"] == gpu and near["format"] == kernel["format"]
    return same and kernel["stretch"] <= NEAR
