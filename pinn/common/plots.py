"""Style of all plots: markers, hatches, and colours whose lightness also differs in greyscale."""

import io
from collections.abc import Iterable
from typing import Literal

import numpy as np
from jaxtyping import Shaped
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

#: Markers and colours in order of use. Dark and light colours alternate, so that neighbours also
#: differ in greyscale.
MARKERS = (
    ("o", "#0072b2"), ("s", "#e69f00"), ("^", "#004d40"), ("D", "#bfe3f7"), ("v", "#8a4500"),
    ("P", "#cc79a7"), ("X", "#111111"), ("*", "#c9c98a"),
)  # fmt: skip

#: Marker and colour of each plotted series, by its name.
Looks = dict[str, tuple[str, str]]

Sharing = bool | Literal["none", "all", "row", "col"]

#: Width of a plot in inches, as wide as a page.
WIDTH = 9.5


def log_scale(ax: Axes) -> None:
    """Make the y axis logarithmic, with ticks at 1, 2, 5, 10, 20, ... as plain numbers."""
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def new_figure(
    height: float,
    rows: int = 1,
    columns: int = 1,
    sharex: Sharing = False,
    sharey: Sharing = False,
) -> tuple[Figure, Shaped[np.ndarray, "rows columns"]]:
    """Return a page-wide figure with a grid of axes that have no frames and small ticks.

    Args:
        height: Height in inches.
        rows: Number of rows of axes.
        columns: Number of columns of axes.
        sharex: Axes that share their x axis, as in matplotlib's ``subplots``.
        sharey: Axes that share their y axis, as in matplotlib's ``subplots``.
    """
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=8)
    return figure, axes


def markers(names: Iterable[str]) -> Looks:
    """Return a marker and a colour for each name; the same set of names gets the same styles."""
    ordered = sorted(set(names))
    return {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(ordered)}


def short(name: str) -> str:
    """Drop the organisation from a model's name, or the form factor from a GPU's name."""
    return name.split("/")[-1].removesuffix("_sxm")


def svg(figure: Figure) -> bytes:
    """Return a figure as SVG with text as outlines; identical figures give identical bytes."""
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "pinn"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def png(figure: Figure) -> bytes:
    """Return a figure as PNG; identical figures give identical bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
