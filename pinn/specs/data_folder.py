"""Where the project's own data files lie: in the checkout, or beside the installed package."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from pinn.errors import PinnError


def data_folder(name: str) -> Path:
    """The folder ``data/<name>`` of the project.

    A checkout (also one installed in editable mode) has it at its root; an installed wheel puts
    it at ``share/pinn/<name>`` of the environment (``data-files`` in pyproject.toml).

    Raises:
        PinnError: If neither exists.
    """
    places = (
        Path(__file__).resolve().parents[2] / "data" / name,
        Path(sysconfig.get_path("data")) / "share" / "pinn" / name,
    )
    for place in places:
        if place.is_dir():
            return place
    raise PinnError(
        f"the data folder {name} is in neither {places[0]} nor {places[1]}: reinstall pinn"
    )


def conf_file(name: str) -> Path:
    """The file ``conf/<name>``, in the checkout or installed like the data.

    Raises:
        PinnError: If it is in neither.
    """
    places = (
        Path(__file__).resolve().parents[2] / "conf" / name,
        Path(sysconfig.get_path("data")) / "share" / "pinn" / "conf" / name,
    )
    for place in places:
        if place.is_file():
            return place
    raise PinnError(f"{name} is in neither {places[0]} nor {places[1]}: reinstall pinn")
