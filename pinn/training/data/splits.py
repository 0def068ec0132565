"""Fixed splits of observations into training and test rows.

Splits involve no randomness, so held-out data remain held out. Each split holds out a model, a GPU,
lengths, a parallelism or a number format. Errors on the test rows show how well predictions
transfer to unseen deployments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from pinn.common.files import write_json_file
from pinn.errors import PinnError
from pinn.specs.gpu import load_gpu


@dataclass(frozen=True)
class Split:
    """Measured deployments to train on, and others to test on.

    Attributes:
        name: Name that is unique within its list, such as ``model=openai/gpt-oss-120b``.
        held_out: Held-out models, GPUs or deployments, which are those of the test rows.
        train_ids: Row ids to train on.
        test_ids: Row ids to test on; none is in ``train_ids``.
    """

    name: str
    held_out: tuple[str, ...]
    train_ids: tuple[str, ...]
    test_ids: tuple[str, ...]

    def __post_init__(self) -> None:
        if both := set(self.train_ids) & set(self.test_ids):
            raise PinnError(
                f"the split {self.name} has {len(both)} row(s) both in training and in test data, "
                f"expected none; the first is {min(both)!r}"
            )


def leave_one_out(column: str, rows: pd.DataFrame) -> list[Split]:
    """Return one split per value of a column, with the rows of this value as test rows.

    Args:
        column: Column whose values are held out; ``lengths`` means pairs of nominal prompt and
            output lengths.
        rows: Table of observations.

    Raises:
        PinnError: If the column has only one value.
    """
    if column == "lengths":
        lengths = rows["prompt_tokens"].astype(str) + "/" + rows["output_tokens"].astype(str)
        rows = rows.assign(lengths=lengths)
    values = rows[column].astype(str)
    names = sorted(values.unique())
    if len(names) < 2:
        raise PinnError(
            f"one {column} cannot be held out: the rows have {len(names)}, expected 2 or more"
        )
    return [_split(rows, f"{column}={n}", values != n, values == n, (n,)) for n in names]


def hopper_to_blackwell(rows: pd.DataFrame) -> list[Split]:
    """Return one split: train on GPUs of compute capability 9, test on 10 and above.

    Raises:
        PinnError: If the training rows or the test rows are empty.
    """
    capability = rows["gpu"].map({n: load_gpu(n).compute_capability for n in rows["gpu"].unique()})
    hopper, blackwell = capability.between(9, 10, inclusive="left"), capability >= 10
    return [_one_way(rows, "Hopper to Blackwell", hopper, blackwell, "gpu")]


#: Eight-bit training formats and four-bit test formats of the split ``eight_to_four_bits``.
EIGHT_BITS = ("fp8", "fp8_static", "fp8_block", "int8")
FOUR_BITS = ("nvfp4", "mxfp4", "mxfp4_mxfp8", "int4")


def eight_to_four_bits(rows: pd.DataFrame) -> list[Split]:
    """Return one split: train on 8-bit deployments, test on 4-bit deployments.

    Models that were measured only in 4-bit formats are unseen in training.

    Raises:
        PinnError: If the training rows or the test rows are empty.
    """
    eight, four = rows["precision"].isin(EIGHT_BITS), rows["precision"].isin(FOUR_BITS)
    return [_one_way(rows, "8 bits to 4 bits", eight, four, "precision")]


#: Functions from observations to splits, by split method. If an engine is held out, kernels
#: measured on it remain in the training data.
SPLITS: dict[str, Callable[[pd.DataFrame], list[Split]]] = {
    "leave-one-model-out": partial(leave_one_out, "model"),
    "leave-one-engine-out": partial(leave_one_out, "engine"),
    "leave-one-gpu-out": partial(leave_one_out, "gpu"),
    "leave-one-gpu-and-its-kernels-out": partial(leave_one_out, "gpu"),
    "leave-one-lengths-out": partial(leave_one_out, "lengths"),
    "leave-one-tp-out": partial(leave_one_out, "tensor_parallel_size"),
    "Hopper to Blackwell": hopper_to_blackwell,
    "8 bits to 4 bits": eight_to_four_bits,
}


def named_splits(names: Sequence[str], rows: pd.DataFrame, folder: Path) -> dict[str, list[Split]]:
    """Return the splits of each split method, and write them to a folder as JSON.

    The files record the rows on which each result was tested.

    Raises:
        PinnError: If a name is not a key of ``SPLITS``.
    """
    if unknown := set(names) - set(SPLITS):
        known = ", ".join(SPLITS)
        raise PinnError(f"the splits {', '.join(sorted(unknown))} are unknown: use any of {known}")
    splits = {name: SPLITS[name](rows) for name in names}
    for name, of_kind in splits.items():
        write_splits(of_kind, folder / f"{name.replace(' ', '-')}.json")
    return splits


def deployment_keys(rows: pd.DataFrame) -> pd.Series:
    """Return a string per row that is the same for all rows of a deployment."""
    tp = rows["tensor_parallel_size"].astype("int64")
    dp = rows["data_parallel_size"].astype("int64")
    ep = (tp * dp).where(rows["enable_expert_parallel"], 1)
    named = rows["model"] + "|" + rows["gpu"] + "|" + rows["precision"]
    found = named + "|tp" + tp.astype(str) + "|ep" + ep.astype(str)
    found += ("|dp" + dp.astype(str)).where(dp > 1, "")
    return found + ("|" + rows["engine"]).where(rows["engine"] != "vllm", "")


def write_splits(splits: Sequence[Split], path: Path) -> None:
    """Write splits as JSON, to record the rows on which each result was tested."""
    write_json_file(path, splits, indent=1)


def _one_way(
    rows: pd.DataFrame, name: str, train: pd.Series, test: pd.Series, column: str
) -> Split:
    if not (train.any() and test.any()):
        raise PinnError(
            f"the split {name} has {int(train.sum())} row(s) of training data and "
            f"{int(test.sum())} of test data, expected at least one of each"
        )
    return _split(rows, name, train, test, tuple(sorted(rows.loc[test, column].unique())))


def _split(
    rows: pd.DataFrame, name: str, train: pd.Series, test: pd.Series, held_out: tuple[str, ...]
) -> Split:
    of_train, of_test = (tuple(rows.loc[part, "row_id"]) for part in (train, test))
    return Split(name, held_out, of_train, of_test)
