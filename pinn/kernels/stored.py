"""Kernel surrogates on disk: one safetensors file of numbers, one JSON file of everything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Shaped
from safetensors.numpy import load_file, save_file

from pinn.errors import PinnError
from pinn.kernels.measured import MeasuredShapes
from pinn.kernels.network import CorrectionNetwork, TrainingPlan
from pinn.kernels.operator import Operator
from pinn.kernels.roofline_fit import RooflineFit
from pinn.kernels.surrogate import OperatorSurrogate
from pinn.specs.documents import read_json
from pinn.specs.files.read_report import file_sha256
from pinn.specs.files.store import remembered_folder
from pinn.specs.files.write import replace_atomically
from pinn.specs.gpu import GpuSpec
from pinn.specs.limits import MOST_CHECKPOINT_BYTES, check_size

TENSORS, STRUCTURE = "kernels.safetensors", "kernels.json"
#: Name -> array, as a file holds them.
Tensors = Mapping[str, Shaped[np.ndarray, "..."]]
#: Raised whenever inputs of a network or the layout of the files change.
LAYOUT = 4


def write(folder: Path, tensors: Tensors, structure: Mapping[str, Any]) -> None:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    replace_atomically(folder / TENSORS, lambda target: save_file(whole, target))
    found = {"layout": LAYOUT, "sha256": file_sha256(folder / TENSORS), **structure}
    text = json.dumps(found, indent=1) + "\n"
    replace_atomically(folder / STRUCTURE, lambda target: target.write_text(text))


def read(folder: Path) -> tuple[Tensors, dict[str, Any]]:
    """Read both files and check that they belong together.

    Raises:
        PinnError: If a file is missing, of another layout, or does not match its hash.
    """
    for name in (STRUCTURE, TENSORS):
        if not (folder / name).is_file():
            raise PinnError(f"no kernel surrogates at {folder / name}: train them first")
    structure, tensors = read_json(folder / STRUCTURE), folder / TENSORS
    layout = structure.get("layout") if isinstance(structure, dict) else None
    if layout != LAYOUT:
        raise PinnError(
            f"{folder / STRUCTURE} has layout {layout!r:.40}, expected {LAYOUT}: "
            "fit the kernel surrogates anew with 'python scripts/fit_surrogates.py'"
        )
    check_size(tensors.stat().st_size, MOST_CHECKPOINT_BYTES, f"{tensors}: bytes", "copy it again")
    if structure.get("sha256") != file_sha256(tensors):
        raise PinnError(f"{tensors} does not match the hash in {STRUCTURE}: copy both files again")
    return load_file(tensors), structure


def operator_tensors(surrogate: OperatorSurrogate) -> Tensors:
    """Weights at 32 bits, which is what training used; ranges of inputs at 64."""
    name = surrogate.operator.name
    found = {}
    for key, value in surrogate.network.state_dict().items():
        keep = torch.float32 if key.startswith("layers.") else torch.float64
        found[f"{name}.network.{key}"] = value.to(keep).numpy()
    found[f"{name}.chips"] = surrogate.chips
    if surrogate.linear is not None:
        found[f"{name}.linear"] = np.stack(list(surrogate.linear.weights.values()))
    return found


def operator_structure(surrogate: OperatorSurrogate) -> dict[str, Any]:
    """Sizes of the network and keys of the linear fit."""
    linear = [m for m in surrogate.network.layers if isinstance(m, torch.nn.Linear)]
    keys = [] if surrogate.linear is None else [list(k) for k in surrogate.linear.weights]
    return {
        "inputs": linear[0].in_features,
        "width": linear[0].out_features,
        "depth": len(linear) - 1,
        "bound": surrogate.network.bound,
        "linear": keys,
    }


def read_operator(
    operator: Operator, tensors: Tensors, structure: Mapping[str, Any]
) -> OperatorSurrogate:
    """Rebuild one operator's surrogate."""
    sizes = structure["operators"][operator.name]
    network = CorrectionNetwork(sizes["inputs"], sizes["width"], sizes["depth"], sizes["bound"])
    prefix = f"{operator.name}.network."
    state = {
        key.removeprefix(prefix): torch.from_numpy(np.array(value))
        for key, value in tensors.items()
        if key.startswith(prefix)
    }
    network.double().load_state_dict(state)
    linear = None
    if sizes["linear"]:
        rows = tensors[f"{operator.name}.linear"]
        keys = [(str(chip), str(family)) for chip, family in sizes["linear"]]
        linear = RooflineFit(dict(zip(keys, rows, strict=True)))
    return OperatorSurrogate(operator, network.eval(), linear, tensors[f"{operator.name}.chips"])


def shared_operator(
    root: Path | None,
    operator: Operator,
    rows: pd.DataFrame,
    gpus: Mapping[str, GpuSpec],
    seed: int,
    plan: TrainingPlan,
) -> OperatorSurrogate:
    """The operator's surrogate, remembered under ``root`` or fitted now; None remembers nothing."""
    if root is None:
        return OperatorSurrogate.fit(operator, rows, gpus, seed=seed, plan=plan)
    place = remembered_folder(fit_operator, type(operator), rows, gpus, seed, plan, root=root)
    return read_operator(operator, *read(place))


def fit_operator(
    folder: Path,
    kind: type[Operator],
    rows: pd.DataFrame,
    gpus: Mapping[str, GpuSpec],
    seed: int,
    plan: TrainingPlan,
) -> None:
    """Fit one operator's surrogate into a folder."""
    fitted = OperatorSurrogate.fit(kind(), rows, gpus, seed=seed, plan=plan)
    structure = {"operators": {kind.name: operator_structure(fitted)}}
    write(folder, operator_tensors(fitted), structure)


def measured_tensors(name: str, measured: MeasuredShapes) -> Tensors:
    """Measured shapes; which table has which as packed bits."""
    return {
        f"measured.{name}.shapes": measured.shapes.astype(np.float32),
        f"measured.{name}.low": measured.low.astype(np.float32),
        f"measured.{name}.high": measured.high.astype(np.float32),
        f"measured.{name}.timed": np.packbits(measured.timed, axis=1),
    }


def measured_structure(measured: MeasuredShapes) -> dict[str, Any]:
    """Names of columns and tables."""
    return {
        "names": list(measured.names),
        "axes": list(measured.axes),
        "tables": [list(pair) for pair in measured.tables],
    }


def read_measured(name: str, tensors: Tensors, structure: Mapping[str, Any]) -> MeasuredShapes:
    """Rebuild the measured shapes of one operator."""
    found = structure["measured"][name]
    tables = tuple((str(gpu), str(form)) for gpu, form in found["tables"])
    bits = np.unpackbits(tensors[f"measured.{name}.timed"], axis=1, count=len(tables))
    return MeasuredShapes(
        tuple(found["names"]),
        tuple(found["axes"]),
        tensors[f"measured.{name}.shapes"].astype(np.float64),
        tensors[f"measured.{name}.low"].astype(np.float64),
        tensors[f"measured.{name}.high"].astype(np.float64),
        tables,
        bits.astype(bool),
    )


def keyed_tensors(name: str, keyed: Mapping[Any, Float[np.ndarray, " values"]]) -> Tensors:
    """Arrays of equal length under composite keys; the keys go to the structure."""
    return {name: np.stack(list(keyed.values()))} if keyed else {}


def read_keyed(
    name: str, tensors: Tensors, structure: Mapping[str, Any]
) -> dict[Any, Float[np.ndarray, " values"]]:
    """Rebuild arrays under composite keys; files of before there were some have none."""
    keys = [tuple(key) for key in structure["keys"].get(name, ())]
    return dict(zip(keys, tensors[name], strict=True)) if keys else {}
