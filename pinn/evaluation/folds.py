"""The folds behind an experiment's splits, and the networks that they learned."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from pinn.coefficients.checkpoint import Checkpoint, save_checkpoint
from pinn.data.splits import Split, named_splits
from pinn.evaluation.configured import Measured, kernel_fits
from pinn.evaluation.crossvalidation import held_out_kernels
from pinn.evaluation.publish import LEFT_OUT_FOLDER
from pinn.training.folds import Fold, fold_of, learn_fold
from pinn.training.serving_rows import ServingRows
from pinn.trust.coefficient_errors import FoldNetwork

#: The split whose networks are kept beside a checkpoint.
KEPT = "leave-one-model-out"


def split_folds(splits: Mapping[str, list[Split]], measured: Measured) -> list[Fold]:
    """The folds behind splits of measured deployments, each once."""
    found: dict[tuple[tuple[str, ...], str], Fold] = {}
    for _, fold, _ in _folds(splits, measured):
        found.setdefault((fold.rows.row_id, fold.exclude.slug()), fold)
    return list(found.values())


def fold_networks(config: DictConfig, measured: Measured, folder: Path) -> list[FoldNetwork]:
    """The network of every fold, written below the experiment's folder."""
    fits = kernel_fits(config, measured.runs, folder)
    splits = named_splits(config.evaluation.splits, measured.observations, folder / "splits")
    found = []
    for number, (kind, fold, test) in enumerate(_folds(splits, measured)):
        network = learn_fold(fits.learner, fold, fits.root).network
        path = folder / "networks" / kind / f"{number:02d}-{fold.exclude.slug()}.safetensors"
        metadata = {"excluded": fold.exclude.describe()}
        save_checkpoint(Checkpoint(network.trained(), metadata), path)
        found.append(FoldNetwork(kind, test.deployments, path))
    return found


def keep_networks(networks: Sequence[FoldNetwork], folder: Path) -> None:
    """Copy the networks that never saw a model to where they are published from."""
    target = folder / LEFT_OUT_FOLDER
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for network in networks:
        if network.split == KEPT:
            shutil.copyfile(network.checkpoint, target / network.checkpoint.name.partition("-")[2])


def _folds(
    splits: Mapping[str, list[Split]], measured: Measured
) -> Iterator[tuple[str, Fold, ServingRows]]:
    """Kind of split, fold and the rows that it leaves out."""
    rows = measured.rows
    for kind, of_kind in splits.items():
        for split in of_kind:
            train, test = (
                rows.take(np.isin(rows.row_id, ids)) for ids in (split.train_ids, split.test_ids)
            )
            exclude = held_out_kernels(kind, test)
            yield kind, fold_of(train, measured.runs, exclude), test
