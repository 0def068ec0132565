"""Draw docs/images/network.svg: ``python scripts/draw_network.py``.

The drawing shows the network with its inputs and outputs, with the sizes of the default network.
"""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from pinn.surrogate.architecture import NetworkSettings
from pinn.surrogate.featurizer import DESCRIPTORS, RATES
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES

OUT = Path(__file__).resolve().parents[1] / "docs" / "images" / "network.svg"
LEARNED, FIXED, DATA = "#dbe9f6", "#eeeeee", "#ffffff"
WIDTH, HEIGHT = 3.0, 1.0


def boxes() -> dict[str, tuple[float, float, str, str]]:
    """Return the centre (x, y), text and colour of every box, by name."""
    size, beta, rates = NetworkSettings(), len(STEP_FEATURES), len(RATES)
    alpha = len(REQUEST_FEATURES)
    hidden = f"linear, {size.hidden} units\nSiLU"
    return {
        "deployment": (0, 1.5, "config.json,\ndatasheet, engine\nconfiguration", DATA),
        "free": (3.7, 2.3, f"{len(DESCRIPTORS)} descriptors,\nstandardized, clamped", FIXED),
        "rates": (3.7, 0.7, f"{rates} log datasheet rates,\nclamped", FIXED),
        "hidden1": (7.4, 2.3, hidden, LEARNED),
        "hidden2": (11.1, 2.3, hidden, LEARNED),
        "beta_head": (14.8, 3.0, f"linear, {beta} units\nbound x tanh", LEARNED),
        "elasticity": (14.8, 1.6, f"linear, {beta} x {rates} units\nsigmoid in bounds", LEARNED),
        "dot": (14.8, 0.2, "elasticities . rates", FIXED),
        "beta": (18.5, 2.3, f"{beta} betas = bound +\n(prior - bound) x\nexp(sum + base)", LEARNED),
        "batch": (14.8, -1.2, "batch: requests,\ntokens, contexts", DATA),
        "features": (18.5, -1.2, f"{beta} roofline features", FIXED),
        "step": (22.2, 0.55, "step time =\nbeta . features", DATA),
        "alpha_head": (7.4, 3.9, f"linear, {alpha} units", LEARNED),
        "alpha": (11.1, 3.9, f"{alpha} alphas = prior x\nexp(sum + base)", LEARNED),
    }


ARROWS = (
    ("deployment", "free"), ("deployment", "rates"), ("free", "hidden1"), ("hidden1", "hidden2"),
    ("hidden2", "beta_head"), ("hidden2", "elasticity"), ("elasticity", "dot"), ("rates", "dot"),
    ("beta_head", "beta"), ("dot", "beta"), ("batch", "features"), ("beta", "step"),
    ("features", "step"), ("free", "alpha_head"), ("alpha_head", "alpha"),
)  # fmt: skip


def draw_box(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    corner = (x - WIDTH / 2, y - HEIGHT / 2)
    style = "round,pad=0.08,rounding_size=0.12"
    axes.add_patch(
        FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle=style, facecolor=color, edgecolor="0.3")
    )
    axes.text(x, y, text, ha="center", va="center", size=8)


def draw_arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    if start[0] == end[0]:  # a vertical arrow
        start, end = (start[0], start[1] - HEIGHT / 2 - 0.08), (end[0], end[1] + HEIGHT / 2 + 0.08)
    else:
        start, end = (start[0] + WIDTH / 2 + 0.08, start[1]), (end[0] - WIDTH / 2 - 0.08, end[1])
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "0.35", "lw": 1.0})


def main() -> None:
    mpl.rcParams["svg.hashsalt"] = "pinn"
    figure, axes = plt.subplots(figsize=(14.5, 5.1))
    placed = boxes()
    for x, y, text, color in placed.values():
        draw_box(axes, x, y, text, color)
    for start, end in ARROWS:
        draw_arrow(axes, placed[start][:2], placed[end][:2])
    axes.text(3.7, -1.2, "blue: trained; grey: fixed by physics", size=8, color="0.3", va="center")
    axes.set(xlim=(-1.8, 24.0), ylim=(-2.0, 4.7))
    axes.axis("off")
    figure.savefig(OUT, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
