"""A step's breakdown as a picture: a function of the report, readable in black and white."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinn.interface.commands.breakdown_report import nearest_text, sizes_text
from pinn.interface.commands.output_paths import PICTURES, check_suffix
from pinn.specs.files.write import replace_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Kernels shown per step; the others are added up.
_KERNELS = 8
#: Narrower segments have no number.
_LABELLED_SHARE = 0.05


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the steps of a report: bars by part, and below each the kernels behind it.

    Args:
        report: As ``pinn.interface.commands.breakdown_report.make_report`` gives it.
        path: Picture to write; its suffix names the format.

    Raises:
        PinnError: If the suffix is not one of ``PICTURES``.
    """
    from matplotlib.figure import Figure

    check_suffix(path, PICTURES)
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
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix.lower().removeprefix(".")
    replace_atomically(path, lambda target: figure.savefig(target, format=kind, dpi=120))


def _heights(step: dict[str, Any]) -> list[float]:
    bars = 0.9 if step["composed_us"] is None else 1.5
    kernels = min(len(step["kernels"]), _KERNELS + 1)
    return [bars, 0.5 + 0.24 * kernels] if kernels else [bars]


def _draw_parts(axes: Axes, step: dict[str, Any]) -> None:
    from pinn.research.report.anatomy import PART_LOOKS  # imports matplotlib
    from pinn.training.teacher.breakdown import DRAFTING

    looks = PART_LOOKS | dict.fromkeys(DRAFTING, ("0.9", "ooo"))
    rows = {"network": "network_us", "kernels and\noverheads": "composed_us"}
    rows = {name: key for name, key in rows.items() if step[key] is not None}
    left = dict.fromkeys(rows, 0.0)
    for entry in step["parts"]:
        shade, hatch = looks[entry["part"]]
        widths = [entry[key] for key in rows.values()]
        bars = axes.barh(
            list(rows), widths, left=list(left.values()), height=0.7, color=shade, hatch=hatch,
            edgecolor="black", linewidth=0.6, label=entry["part"].replace("_", " "),
        )  # fmt: skip
        longest = max(step[key] for key in rows.values())
        texts = [f"{w:.0f}" if w > _LABELLED_SHARE * longest else "" for w in widths]
        for label in axes.bar_label(bars, texts, label_type="center", fontsize=8):
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})
            label.set_visible(bool(label.get_text()))
        left = {name: left[name] + width for name, width in zip(rows, widths, strict=True)}
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
    notes = [f"{k['composed_us']:.0f} us; {nearest_text(k)}{_stretch(k)}" for k in shown]
    if rest:
        names.append(f"{len(rest)} more")
        values.append(sum(k["composed_us"] for k in rest))
        notes.append(f"{values[-1]:.0f} us")
    bars = axes.barh(range(len(names)), values, height=0.6, color="0.8", edgecolor="black")
    axes.bar_label(bars, [f" {n}" for n in notes], fontsize=7)
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
