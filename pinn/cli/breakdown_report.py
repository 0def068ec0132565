"""What pinn breakdown prints and draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pinn.cli import report_parts
from pinn.common.files import replace_atomically
from pinn.common.screen import WIDEST, Column, Grid, page, say
from pinn.engines.deployment import Deployment
from pinn.kernels.evidence import KernelUse
from pinn.specs.batch import parse_batch
from pinn.training.breakdown import DRAFTING, PART_OF_FEATURE, PARTS, Breakdown
from pinn.units import MICROSECOND

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# A step's breakdown: gathered and printed.

#: Closer than this ratio, a kernel counts as measured.
NEAR = 1.1
#: Steps that a table has side by side.
_ABREAST = 2
_MORE = (
    "More: --explain (what parts hold; the step composed of measured kernels), --plot, --json FILE."
)


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
    marks = report_parts.batch_marks([parse_batch(found.batch) for found in breakdowns], deployment)
    steps = [_step(found) | {"marks": of} for found, of in zip(breakdowns, marks, strict=True)]
    return {
        "model": deployment.model.name,
        "asked_as": deployment.model.title,
        "gpu": deployment.gpu.name,
        "serving": asdict(deployment.serving),
        **report_parts.notices(deployment.serving),
        "sources": dict(sources),
        "steps": steps,
    }


def _step(found: Breakdown) -> dict[str, Any]:
    composed = found.composed or {}
    return {
        "batch": found.batch,
        "floor_us": found.floor / MICROSECOND,
        "network_us": sum(found.network.values()) / MICROSECOND,
        "composed_us": sum(composed.values()) / MICROSECOND if composed else None,
        "parts": [
            {
                "part": part,
                "network_us": seconds / MICROSECOND,
                "composed_us": composed[part] / MICROSECOND if composed else None,
            }
            for part, seconds in found.network.items()
        ],
        "features": [
            {"feature": name, "part": _part_of(name), "network_us": seconds / MICROSECOND}
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
    for line in report_parts.marks_lines(steps):
        say(line)
    for step in steps:
        if step["kernels"]:
            say(f"{step['batch']}: {_rests_on(step['kernels'], report['gpu'])}")
    say(_MORE)


def _steps_table(steps: Sequence[dict[str, Any]]) -> Grid:
    """The parts of steps side by side, as the network has them, and the datasheet's floor."""
    headings = ((Column(f"{step['batch']}: us", most=20), "%") for step in steps)
    parts = [{entry["part"]: entry["network_us"] for entry in step["parts"]} for step in steps]
    names = dict.fromkeys(name for of_step in parts for name in of_step)
    rows = {name: [of_step.get(name) for of_step in parts] for name in names}
    totals = rows["step"] = [step["network_us"] for step in steps]
    rows["least the datasheet allows"] = [step["floor_us"] for step in steps]
    table = Grid.of("part of a step", *(each for pair in headings for each in pair))
    for name, values in rows.items():
        table.add(name, *_cells(values, totals))
    return table


def _print_whole(report: dict[str, Any]) -> None:
    for step in report["steps"]:
        say("")
        page(WIDEST).print(_parts_table(step))
        for line in report_parts.marks_lines([step]):
            say(line)
        if step["kernels"]:
            say("")
            page(WIDEST).print(_kernels_table(step["kernels"]))
            say(_rests_on(step["kernels"], report["gpu"]))


def _worth_showing(name: str, value: Any) -> bool:
    return name.endswith("parallel_size") or (name == "enable_expert_parallel" and value)


def _parts_table(step: dict[str, Any]) -> Grid:
    title = f"{step['batch']}: where the microseconds go (floor {step['floor_us']:.0f} us)"
    holds = Column("what it holds", True)
    table = Grid.of("part", "network us", "%", "composed us", "%", holds, caption=title)
    texts = PARTS | DRAFTING | {"step": ""}
    totals = [step["network_us"], step["composed_us"]]
    for entry in [*step["parts"], step | {"part": "step"}]:
        cells = _cells([entry["network_us"], entry["composed_us"]], totals)
        table.add(entry["part"], *cells, texts[entry["part"]])
    return table


def _cells(values: Sequence[float | None], totals: Sequence[float | None]) -> Iterator[str]:
    """Each value and its share of its total."""
    for value, total in zip(values, totals, strict=True):
        if value is None or total is None:
            yield from ("-", "-")
        else:
            yield from (f"{value:.0f}", f"{100 * value / total:.0f}")


def _kernels_table(kernels: Sequence[dict[str, Any]]) -> Grid:
    nearest = Column("nearest measured", True)
    headings = ("kernel", "runs", "us each", "us", nearest, "size off by")
    table = Grid.of(*headings, caption="measured kernels behind it")
    for entry in kernels:
        stretch = "-" if entry["stretch"] is None else f"x {entry['stretch']:.2f}"
        table.add(
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
    near = sum(k["composed_us"] for k in kernels if _is_near(k, gpu))
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
    if near is None or (near["gpu"], near["format"]) != (gpu, kernel["format"]):
        return False
    return bool(kernel["stretch"] <= NEAR)


# A step's breakdown as a picture: a function of the report, readable in black and white.

#: Colour and hatch of each part of a step, alternating so that neighbours differ.
PART_LOOKS = dict(
    zip(
        PARTS,
        (
            ("#12436d", ""), ("#d5e6f2", "///"), ("#28a197", ""), ("#ffffff", "..."),
            ("#f2a65a", "xxx"), ("#5b5b66", ""), ("#f4ecd0", "\\\\\\"), ("#c77f9f", "++"),
            ("#d5d5dc", ""),
        ),
        strict=True,
    )
)  # fmt: skip

#: Kernels shown per step; the others are added up.
_KERNELS = 8
#: Narrower segments have no number.
_LABELLED_SHARE = 0.05


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the steps of a report: bars by part, and below each the kernels behind it.

    Args:
        report: As ``pinn.cli.breakdown_report.make_report`` gives it.
        path: Picture to write; its suffix, one of ``outputs.PICTURES``, names the format.
    """
    from matplotlib.figure import Figure

    steps = report["steps"]
    heights = [h for step in steps for h in _heights(step)]
    figure = Figure(figsize=(11, sum(heights) + 1.4), layout="constrained")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0].tolist()
    for step in steps:
        _draw_parts(axes.pop(0), step)
        if step["kernels"]:
            _draw_kernels(axes.pop(0), step["kernels"])
    size = report["serving"]["tensor_parallel_size"]
    figure.suptitle(f"{report['model']} on {report['gpu']}, tensor parallel {size}")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    kind = path.suffix.lower().removeprefix(".")
    replace_atomically(path, lambda target: figure.savefig(target, format=kind, dpi=120))


def _heights(step: dict[str, Any]) -> list[float]:
    bars = 0.9 if step["composed_us"] is None else 1.5
    kernels = min(len(step["kernels"]), _KERNELS + 1)
    return [bars, 0.5 + 0.24 * kernels] if kernels else [bars]


def _draw_parts(axes: Axes, step: dict[str, Any]) -> None:
    looks = PART_LOOKS | dict.fromkeys(DRAFTING, ("0.9", "ooo"))
    rows = {"network": "network_us", "kernels and\noverheads": "composed_us"}
    rows = {name: key for name, key in rows.items() if step[key] is not None}
    longest, left = max(step[key] for key in rows.values()), np.zeros(len(rows))
    for entry in step["parts"]:
        shade, hatch = looks[entry["part"]]
        widths = [entry[key] for key in rows.values()]
        bars = axes.barh(
            list(rows), widths, left=left, height=0.7, color=shade, hatch=hatch,
            edgecolor="black", linewidth=0.6, label=entry["part"].replace("_", " "),
        )  # fmt: skip
        texts = [f"{w:.0f}" if w > _LABELLED_SHARE * longest else "" for w in widths]
        for label in axes.bar_label(bars, texts, label_type="center", fontsize=8):
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})
            label.set_visible(bool(label.get_text()))
        left = left + widths
    axes.axvline(step["floor_us"], color="black", linestyle="--", linewidth=1)
    axes.annotate(
        "floor", (step["floor_us"], 1.0), (2, 2), xycoords=("data", "axes fraction"),
        textcoords="offset points", fontsize=8, va="bottom",
    )  # fmt: skip
    axes.invert_yaxis()
    axes.set_title(step["batch"], loc="left", fontsize=10, pad=14)
    axes.set_xlabel("us", fontsize=8, loc="right", labelpad=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _draw_kernels(axes: Axes, kernels: list[dict[str, Any]]) -> None:
    shown, rest = kernels[:_KERNELS], kernels[_KERNELS:]
    names = [f"{k['operator']} {k['format']} x {k['runs']:.0f}: {_brief(k)}" for k in shown]
    values = [k["composed_us"] for k in shown]
    notes = [f"; {nearest_text(k)}{_stretch(k)}" for k in shown]
    if rest:
        names.append(f"{len(rest)} more")
        values.append(sum(k["composed_us"] for k in rest))
        notes.append("")
    bars = axes.barh(range(len(names)), values, height=0.6, color="0.8", edgecolor="black")
    axes.bar_label(
        bars, [f" {v:.0f} us{n}" for v, n in zip(values, notes, strict=True)], fontsize=7
    )
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlim(0, 2.2 * max(values))
    axes.invert_yaxis()
    axes.set_title("kernels: time; the nearest measured one", loc="left", fontsize=8)
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _brief(kernel: dict[str, Any]) -> str:
    """The sizes that tell kernels of a step apart."""
    telling = ("m", "n", "k", "tokens", "sequences", "context_tokens", "window", "gpus", "bytes")
    return sizes_text({k: v for k, v in kernel["sizes"].items() if k in telling and v})


def _stretch(kernel: dict[str, Any]) -> str:
    return "" if kernel["stretch"] is None else f", size off by x {kernel['stretch']:.2f}"
