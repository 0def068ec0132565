"""Storage of fitted kernel surrogates, and of the kernel shapes to which they were fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Shaped
from safetensors.numpy import load_file, save_file

from pinn.common.documents import MOST_CHECKPOINT_BYTES, check_size, read_json
from pinn.common.files import file_sha256, replace_atomically, write_json_file
from pinn.common.store import remembered_folder
from pinn.errors import PinnError
from pinn.kernels.hardware import Gpus
from pinn.kernels.operator import KernelCorrection, Operator, TrainingPlan
from pinn.kernels.surrogate import OperatorSurrogate, RooflineFit

# Measured kernels, and the distance of a predicted kernel from the nearest measured kernel.


@dataclass(frozen=True)
class Nearest:
    """Measured kernel that is nearest to a predicted kernel.

    Attributes:
        shape: Sizes of the measured kernel by name. For sizes that were measured over a range, the
            nearest value in the range is given.
        gpu: GPU on which the kernel was measured: the GPU of the prediction or, if the kernel was
            not measured on it, another.
        precision: Number format of the measured kernel.
        stretch: Maximum absolute log ratio of predicted to measured size, over all sizes: 0 if the
            kernel itself was measured, 0.69 if one size is twice or half the measured size.
    """

    shape: Mapping[str, float]
    gpu: str
    precision: str
    stretch: float


@dataclass(frozen=True)
class MeasuredShapes:
    """Measured shapes of one kernel type, and the sizes at which each shape was measured.

    Attributes:
        names: Names of the columns that define a shape.
        axes: Names of the columns whose values vary for a given shape, such as the number of
            tokens.
        shapes: Distinct shapes, ``[shapes, names]``.
        low: Minimum measured value per axis, ``[shapes, axes]``.
        high: Maximum measured value per axis, ``[shapes, axes]``.
        tables: (GPU, format) pairs for which kernels were measured.
        timed: Whether each shape was measured for each pair in ``tables``, ``[shapes, tables]``.
    """

    names: tuple[str, ...]
    axes: tuple[str, ...]
    shapes: Float[np.ndarray, "shapes names"]
    low: Float[np.ndarray, "shapes axes"]
    high: Float[np.ndarray, "shapes axes"]
    tables: tuple[tuple[str, str], ...]
    timed: Bool[np.ndarray, "shapes tables"]

    @staticmethod
    def of(
        rows: pd.DataFrame, names: Sequence[str], axes: Sequence[str], format_column: str
    ) -> MeasuredShapes:
        """Return the distinct shapes of measured rows, with the range of each axis."""
        grouped = rows.groupby(list(names), sort=True)
        shape_of_row = grouped.ngroup().to_numpy()
        low, high = grouped[list(axes)].min(), grouped[list(axes)].max()
        shapes = np.array([np.atleast_1d(k) for k in low.index], dtype=np.float64)
        pair = rows["gpu"].astype(str) + "|" + rows[format_column].astype(str)
        codes, labels = pd.factorize(pair, sort=True)
        timed = np.zeros((len(shapes), len(labels)), dtype=bool)
        timed[shape_of_row, codes] = True
        tables = tuple((str(p).split("|")[0], str(p).split("|")[1]) for p in labels)
        shapes = shapes.reshape(len(shapes), len(names))
        ends = low.to_numpy(np.float64), high.to_numpy(np.float64)
        return MeasuredShapes(tuple(names), tuple(axes), shapes, *ends, tables, timed)

    def nearest(self, gpu: str, precision: str, sizes: Mapping[str, float]) -> Nearest:
        """Return the measured kernel that is nearest to given sizes.

        Only kernels measured on the same GPU in the same format are considered, if there are any.
        Otherwise kernels in the same format are considered, then kernels on the same GPU, then all.
        """
        columns = self._preferred(gpu, precision)
        usable = np.flatnonzero(self.timed[:, columns].any(axis=1))
        want = np.array([float(sizes[n]) for n in self.names])
        # Add 1 to keep the distance large but finite if only one of the shapes has a window (0
        # means none).
        apart = np.abs(np.log((self.shapes[usable] + 1) / (want + 1))).max(axis=1, initial=0.0)
        at = np.array([max(float(sizes[a]), 1e-9) for a in self.axes])
        inside = np.clip(at, self.low[usable], self.high[usable])
        beyond = np.abs(np.log(at / inside)).max(axis=1)
        best = int(np.argmin(np.maximum(apart, beyond)))
        row = usable[best]
        table = next(c for c in columns if self.timed[row, c])
        sizes_there = [*self.shapes[row].tolist(), *inside[best].tolist()]
        shape = dict(zip((*self.names, *self.axes), sizes_there, strict=True))
        return Nearest(shape, *self.tables[table], float(max(apart[best], beyond[best])))

    def _preferred(self, gpu: str, precision: str) -> list[int]:
        """Return the indices of the tables in which to look for the nearest measured kernel.

        These are the tables for the same GPU and format. Without any, they are those for the same
        format, else for the same GPU, else all.
        """
        alike = [2 * (form == precision) + (chip == gpu) for chip, form in self.tables]
        return [i for i, each in enumerate(alike) if each == max(alike)]


# Files of kernel surrogates: a safetensors file with arrays, and a JSON file with all other data.

TENSORS, STRUCTURE = "kernels.safetensors", "kernels.json"
#: Arrays of the surrogates by name, as in the file of tensors.
Tensors = Mapping[str, Shaped[np.ndarray, "..."]]
#: All data of the surrogates except arrays, in JSON-compatible types.
Structure = Mapping[str, Any]
#: Version of both files; it increases when a network's inputs or the layout of the files change.
LAYOUT = 5
_FIT_ANEW = "refit the kernel surrogates with 'python scripts/fit_surrogates.py'"


def write(folder: Path, tensors: Tensors, structure: Mapping[str, object]) -> None:
    """Write the surrogates' tensor file and JSON file to a folder."""
    whole = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    replace_atomically(folder / TENSORS, lambda target: save_file(whole, target))
    found = {"layout": LAYOUT, "sha256": file_sha256(folder / TENSORS), **structure}
    write_json_file(folder / STRUCTURE, found, indent=1)


def read(folder: Path) -> tuple[Tensors, dict[str, Any]]:
    """Read the tensor file and JSON file in a folder, and check that they belong together.

    Raises:
        PinnError: If a file is missing, has a different layout, or does not match its hash.
    """
    for name in (STRUCTURE, TENSORS):
        if not (folder / name).is_file():
            raise PinnError(
                f"the file of kernel surrogates {folder / name} does not exist: fit the surrogates "
                "with 'python scripts/fit_surrogates.py'"
            )
    structure, tensors = read_json(folder / STRUCTURE), folder / TENSORS
    layout = structure.get("layout") if isinstance(structure, dict) else None
    if layout != LAYOUT:
        raise PinnError(
            f"{folder / STRUCTURE} has the layout {layout!r:.40}, expected {LAYOUT}: {_FIT_ANEW}"
        )
    check_size(
        tensors.stat().st_size,
        MOST_CHECKPOINT_BYTES,
        f"the size of {tensors} in bytes",
        "copy the file again",
    )
    if structure.get("sha256") != file_sha256(tensors):
        raise PinnError(
            f"the SHA-256 of {tensors} differs from the hash in {STRUCTURE}: copy both files again"
        )
    return load_file(tensors), structure


def check_fits(folder: Path, structure: Structure, names: Sequence[str]) -> None:
    """Check that a folder has all fitted surrogates; folders of earlier releases may lack some.

    Raises:
        PinnError: If a fit is missing.
    """
    missing = [name for name in names if name not in structure["keys"]]
    if missing:
        lacking = ", ".join(missing)
        raise PinnError(f"{folder / STRUCTURE} lacks the fits of {lacking}: {_FIT_ANEW}")


def operator_tensors(surrogate: OperatorSurrogate) -> Tensors:
    """Return a surrogate's weights as float32 tensors, as trained, and input ranges in float64."""
    name = surrogate.operator.name
    found = {}
    for key, value in surrogate.network.state_dict().items():
        keep = torch.float32 if key.startswith("layers.") else torch.float64
        found[f"{name}.network.{key}"] = value.to(keep).numpy()
    found[f"{name}.chips"] = surrogate.chips
    if surrogate.linear is not None:
        found[f"{name}.linear"] = np.stack(list(surrogate.linear.weights.values()))
    return found


def operator_structure(surrogate: OperatorSurrogate) -> dict[str, object]:
    """Return the layer sizes of a surrogate's network, and the keys of its linear fit's weights."""
    linear = [m for m in surrogate.network.layers if isinstance(m, torch.nn.Linear)]
    keys = [] if surrogate.linear is None else [list(k) for k in surrogate.linear.weights]
    return {
        "inputs": linear[0].in_features,
        "width": linear[0].out_features,
        "depth": len(linear) - 1,
        "bound": surrogate.network.bound,
        "linear": keys,
    }


def read_operator(operator: Operator, tensors: Tensors, structure: Structure) -> OperatorSurrogate:
    """Return the surrogate of one kernel type, restored from tensors and JSON."""
    sizes = structure["operators"][operator.name]
    network = KernelCorrection(sizes["inputs"], sizes["width"], sizes["depth"], sizes["bound"])
    prefix = f"{operator.name}.network."
    state = {
        key.removeprefix(prefix): torch.from_numpy(np.array(value))
        for key, value in tensors.items()
        if key.startswith(prefix)
    }
    network.double().load_state_dict(state)
    keys = [(str(chip), str(family)) for chip, family in sizes["linear"]]
    linear = None
    if keys:
        linear = RooflineFit(dict(zip(keys, tensors[f"{operator.name}.linear"], strict=True)))
    return OperatorSurrogate(operator, network.eval(), linear, tensors[f"{operator.name}.chips"])


def shared_operator(
    root: Path | None,
    operator: Operator,
    rows: pd.DataFrame,
    gpus: Gpus,
    seed: int,
    plan: TrainingPlan,
) -> OperatorSurrogate:
    """Return the surrogate of a kernel type, from the cache under ``root`` or newly fitted."""
    if root is None:
        return OperatorSurrogate.fit(operator, rows, gpus, seed=seed, plan=plan)
    place = remembered_folder(fit_operator, type(operator), rows, gpus, seed, plan, root=root)
    return read_operator(operator, *read(place))


def fit_operator(
    folder: Path,
    kind: type[Operator],
    rows: pd.DataFrame,
    gpus: Gpus,
    seed: int,
    plan: TrainingPlan,
) -> None:
    """Fit the surrogate of one kernel type and write it to a folder."""
    fitted = OperatorSurrogate.fit(kind(), rows, gpus, seed=seed, plan=plan)
    write(folder, operator_tensors(fitted), {"operators": {kind.name: operator_structure(fitted)}})


def measured_tensors(name: str, measured: MeasuredShapes) -> Tensors:
    """Return measured shapes as tensors, with the flags ``timed`` as packed bits."""
    sizes = {"shapes": measured.shapes, "low": measured.low, "high": measured.high}
    found = {f"measured.{name}.{part}": size.astype(np.float32) for part, size in sizes.items()}
    return found | {f"measured.{name}.timed": np.packbits(measured.timed, axis=1)}


def read_measured(name: str, tensors: Tensors, structure: Structure) -> MeasuredShapes:
    """Return the measured shapes of one kernel type, restored from tensors and JSON."""
    found = structure["measured"][name]
    tables = tuple((str(gpu), str(form)) for gpu, form in found["tables"])
    bits = np.unpackbits(tensors[f"measured.{name}.timed"], axis=1, count=len(tables))
    shapes, low, high = (
        tensors[f"measured.{name}.{part}"].astype(np.float64) for part in ("shapes", "low", "high")
    )
    names, axes = tuple(found["names"]), tuple(found["axes"])
    return MeasuredShapes(names, axes, shapes, low, high, tables, bits.astype(bool))


def read_keyed(
    name: str, tensors: Tensors, structure: Structure
) -> dict[object, Float[np.ndarray, " values"]]:
    """Return the arrays of one fit by their composite keys, such as (GPU, format)."""
    keys = [tuple(key) for key in structure["keys"][name]]
    return dict(zip(keys, tensors[name], strict=True)) if keys else {}
