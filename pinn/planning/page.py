"""A plan as one self-contained page, and its pictures as PNG files."""

import base64
from pathlib import Path

from pinn.common import files, pages
from pinn.common.plots import png, short, svg
from pinn.planning import pictures
from pinn.planning.plan import FLEET_HOLDS_MORE, POOLS_UNSURE, Plan
from pinn.planning.slo import written_s

#: Name of a picture -> function that draws it, None where there is nothing to draw.
_PICTURES = {
    "frontier": pictures.frontier_figure,
    "percentiles": pictures.percentile_figure,
    "step-time": pictures.step_time_figure,
}


def write_page(plan: Plan, folder: Path) -> Path:
    """Write ``plan.html``, which needs no other file, and the same pictures as PNG files.

    Args:
        plan: The plan to show.
        folder: Where to.

    Returns:
        The page.
    """
    drawn: dict[str, str | None] = {}
    for name, draw in _PICTURES.items():
        figure = draw(plan)
        if figure is not None:
            files.write_whole(folder / f"{name}.png", png(figure))
        content = None if figure is None else base64.b64encode(svg(figure)).decode()
        drawn[name.replace("-", "_")] = content
    text = pages.template("pinn.planning", "plan.html.j2").render(
        plan=plan,
        pictures=drawn,
        parts=pictures.shown_parts(plan.choices),
        best=[point for point in plan.frontier if point.best],
        fleet_holds_more=FLEET_HOLDS_MORE,
        pools_unsure=POOLS_UNSURE,
        short=short,
        time=_time,
    )
    files.write_whole(folder / "plan.html", text)
    return folder / "plan.html"


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else written_s(seconds)
