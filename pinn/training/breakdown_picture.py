"""Figure of a step's breakdown that is readable in black and white."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pinn.common.files import replace_atomically
from pinn.engines.deployment import Deployment
from pinn.kernels.evidence import KernelUse
from pinn.training.breakdown import DRAFTING, ENCODING, PARTS, Breakdown
from pinn.training.step_breakdowns import nearest_text, sizes_text, stretch_of
from pinn.units import MICROSECOND

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours and hatches by part of a step. Neighbouring parts are distinguishable without colour.
PART_LOOKS = dict(
    zip(
        PARTS,
        (
            ("#12436d", ""), ("#d5e6f2", "///"), ("#28a197", ""), ("#ffffff", "..."),
            ("#f2a65a", "xxx"), ("#5b5b66", ""), ("#f4ecd0", "\\\\\\"), ("#c77f9f", "++"),
            ("#3f5b2a", ""), ("#d5d5dc", ""),
        ),
        strict=True,
    )
)  # fmt: skip

#: Maximum number of kernels to plot per step; all other kernels are plotted as one bar.
_KERNELS = 8
#: Minimum share of the step time for a segment of the bar to be labelled with its time.
_LABELLED_SHARE = 0.05


def draw(deployment: Deployment, steps: Sequence[Breakdown], path: Path) -> None:
    """Draw each step's time as a bar of parts, with the step's longest kernels below.

    Args:
        deployment: Deployment that runs the steps.
        steps: Breakdowns of the steps.
        path: Image file to write; its suffix, such as ``.png``, selects the format.
    """
    from matplotlib.figure import Figure

    heights = [h for step in steps for h in _heights(step)]
    figure = Figure(figsize=(11, sum(heights) + 1.4), layout="constrained")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0].tolist()
    for step in steps:
        _draw_parts(axes.pop(0), step)
        if step.kernels:
            _draw_kernels(axes.pop(0), step.kernels)
    size = deployment.serving.tensor_parallel_size
    title = f"{deployment.model.name} on {deployment.gpu.name}, tensor parallel {size}"
    figure.suptitle(title)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    kind = path.suffix.lower().removeprefix(".")
    replace_atomically(path, lambda target: figure.savefig(target, format=kind, dpi=120))


def _heights(step: Breakdown) -> list[float]:
    bars = 1.5 if step.composed else 0.9
    kernels = min(len(step.kernels), _KERNELS + 1)
    return [bars, 0.5 + 0.24 * kernels] if kernels else [bars]


def _draw_parts(axes: Axes, step: Breakdown) -> None:
    looks = PART_LOOKS | dict.fromkeys(DRAFTING, ("0.9", "ooo"))
    looks |= dict.fromkeys(ENCODING, ("#85994b", "**"))
    rows = {"network": step.network, "kernels and\noverheads": step.composed}
    parts = {name: values for name, values in rows.items() if values}
    longest = max(sum(values.values()) for values in parts.values()) / MICROSECOND
    left = np.zeros(len(parts))
    for part in step.network:
        shade, hatch = looks[part]
        widths = [values[part] / MICROSECOND for values in parts.values()]
        bars = axes.barh(
            list(parts), widths, left=left, height=0.7, color=shade, hatch=hatch,
            edgecolor="black", linewidth=0.6, label=part.replace("_", " "),
        )  # fmt: skip
        texts = [f"{w:.0f}" if w > _LABELLED_SHARE * longest else "" for w in widths]
        for label in axes.bar_label(bars, texts, label_type="center", fontsize=8):
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})
            label.set_visible(bool(label.get_text()))
        left = left + widths
    floor = step.floor / MICROSECOND
    axes.axvline(floor, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        "floor", (floor, 1.0), (2, 2), xycoords=("data", "axes fraction"),
        textcoords="offset points", fontsize=8, va="bottom",
    )  # fmt: skip
    axes.invert_yaxis()
    axes.set_title(step.batch, loc="left", fontsize=10, pad=14)
    axes.set_xlabel("us", fontsize=8, loc="right", labelpad=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _draw_kernels(axes: Axes, kernels: Sequence[KernelUse]) -> None:
    shown, rest = kernels[:_KERNELS], kernels[_KERNELS:]
    names = [f"{k.operator} {k.precision} x {k.count:.0f}: {_brief(k)}" for k in shown]
    values = [k.total_seconds / MICROSECOND for k in shown]
    notes = [f"; {nearest_text(k)}{_stretch(k)}" for k in shown]
    if rest:
        names.append(f"{len(rest)} more")
        values.append(sum(k.total_seconds for k in rest) / MICROSECOND)
        notes.append("")
    bars = axes.barh(range(len(names)), values, height=0.6, color="0.8", edgecolor="black")
    axes.bar_label(
        bars, [f" {v:.0f} us{n}" for v, n in zip(values, notes, strict=True)], fontsize=7
    )
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlim(0, 2.2 * max(values))
    axes.invert_yaxis()
    axes.set_title(
        "kernels: time, and size ratio to the nearest measured kernel", loc="left", fontsize=8
    )
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _brief(kernel: KernelUse) -> str:
    """Return the sizes that distinguish a kernel from the step's other kernels, as text."""
    telling = ("m", "n", "k", "tokens", "sequences", "context_tokens", "window", "gpus", "bytes")
    return sizes_text({k: v for k, v in kernel.sizes.items() if k in telling and v})


def _stretch(kernel: KernelUse) -> str:
    stretch = stretch_of(kernel)
    return "" if stretch is None else f", size ratio {stretch:.2f}"
