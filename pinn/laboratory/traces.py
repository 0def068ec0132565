"""Training on traces together with measured deployments; errors on later and on left-out runs."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from pinn.coefficients.coefficient_network import CoefficientNetwork
from pinn.coefficients.surrogate import predict_coefficients
from pinn.coefficients.trained_network import Checkpoint, load_checkpoint, save_checkpoint
from pinn.common.files import file_sha256, find_checkpoint
from pinn.common.store import contents_digest
from pinn.common.tables import write_frame
from pinn.laboratory.methods import make_repeatable
from pinn.server.calibration.calibrate import TEST, error_table
from pinn.training.data.table import read_manifest, read_observations
from pinn.training.provenance import code_sha256, json_sha256
from pinn.training.serving_rows import ServingRows, serving_rows
from pinn.training.trace_fit import TracedRun, TraceLearner, read_runs, trace_rows

LATER, WORKLOAD, MODEL = "later time", "leave-one-workload-out", "leave-one-model-out"
START, TRAINED = "start", "with traces"


def run_traces(config: DictConfig) -> dict[str, Any]:
    """Run the experiment.

    Args:
        config: As ``conf/experiment/traces.yaml`` composes it.

    Returns:
        Where things were saved and the errors, ready for JSON.

    Raises:
        PinnError: If data, checkpoint or configuration cannot be used.
    """
    make_repeatable(config)
    folder, given = Path(config.output_dir), config.data.traces
    folders = [given] if isinstance(given, str) else list(given or ())
    runs = read_runs(folders)
    source = {k: v for k, v in config.data.items() if k != "traces"}
    instantiate(source)
    manifest = read_manifest(Path(config.data.target))
    rows = serving_rows(read_observations(Path(config.data.target)))
    path = find_checkpoint(config.start)
    start = load_checkpoint(path)
    before = CoefficientNetwork.from_trained(start.network)
    settings: Any = OmegaConf.to_container(config, resolve=True)
    learned_from = {part: settings[part] for part in ("fit", "trace_fit", "seed")}
    recipe = json_sha256(start.metadata.get("recipe_sha256"), learned_from)
    mark = json_sha256(recipe, manifest.table_sha256, file_sha256(path), code_sha256())
    study = _Study(_learner(config), before, rows, runs, folder / "logs", mark, config.seed)

    network = study.trained(LATER, list(range(len(runs))), np.ones(len(rows), dtype=bool))
    cells = [_errors(LATER, run, before, network) for run in runs]
    results = pd.concat([*cells, *study.left_out()], ignore_index=True)
    write_frame(results, folder / "results.csv")
    last = results[(results.part == TEST) & (results.n > 0)]
    print(last.to_string(index=False, float_format=lambda v: f"{v:.4f}"), file=sys.stderr)
    metadata = start.metadata | {
        "experiment": config.experiment_name,
        "command": "python train.py " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).date().isoformat(),
        "recipe_sha256": recipe,
        "data_sha256": json_sha256(
            start.metadata.get("data_sha256"),
            manifest.table_sha256,
            [contents_digest(Path(traced)) for traced in folders],
        ),
        "code_sha256": code_sha256(),
        "started_from": file_sha256(path),
        "traces": [run.name for run in runs],
        # Those of the start are of another network.
        "held_out_results": [],
    }
    saved = folder / "checkpoint.safetensors"
    checkpoint = Checkpoint(network.trained(), metadata, start.anchors, start.anchor_names)
    save_checkpoint(checkpoint, saved)
    return {
        "experiment": config.experiment_name,
        "folder": str(folder),
        "checkpoint": str(saved),
        "errors": last.to_dict("records"),
    }


def _learner(config: DictConfig) -> TraceLearner:
    return TraceLearner(
        instantiate(config.fit), instantiate(config.trace_fit), instantiate(config.trainer)
    )


class _Study:
    """Trains on some runs and rows; each fit logs into a folder of its own."""

    def __init__(
        self,
        learner: TraceLearner,
        start: CoefficientNetwork,
        rows: ServingRows,
        runs: Sequence[TracedRun],
        logs: Path,
        mark: str,
        seed: int,
    ) -> None:
        self.learner, self.start, self.rows, self.runs = learner, start, rows, runs
        self.logs, self.mark, self.seed = logs, mark, seed

    def trained(self, split: str, chosen: list[int], keep: np.ndarray) -> CoefficientNetwork:
        """A network from the chosen runs and the rows to keep."""
        runs = [self.runs[i] for i in chosen]
        traced = trace_rows(runs, self.learner.traces.rows_per_run, self.seed)
        digest = hashlib.sha256(f"{self.mark} {split}".encode())
        for part in (traced.features, traced.seconds, keep):
            digest.update(np.ascontiguousarray(part).tobytes())
        rows = self.rows.take(keep)
        folder = self.logs / digest.hexdigest()[:16]
        return self.learner.learn(self.start, rows, traced, folder)

    def left_out(self) -> list[pd.DataFrame]:
        """Errors on each run and on each model that the traces and rows trained on lack.

        The start may have learned from measurements of a model that is left out here.
        """
        cells = []
        groups = {
            WORKLOAD: [run.name for run in self.runs],
            MODEL: [run.deployment.model.name for run in self.runs],
        }
        of_row = np.array([self.rows.deployments[i].model.name for i in self.rows.deployment])
        for split, names in groups.items():
            for name in sorted(set(names)):
                rest = [i for i, other in enumerate(names) if other != name]
                if not rest:
                    continue
                keep = of_row != name if split == MODEL else np.ones(len(of_row), dtype=bool)
                network = self.trained(f"{split} {name}", rest, keep)
                tested = [run for run, other in zip(self.runs, names, strict=True) if other == name]
                cells += [_errors(split, run, self.start, network) for run in tested]
        return cells


def _errors(
    split: str, run: TracedRun, start: CoefficientNetwork, network: CoefficientNetwork
) -> pd.DataFrame:
    betas = {
        name: predict_coefficients(of, [run.deployment]).beta[0]
        for name, of in ((START, start), (TRAINED, network))
    }
    table = error_table(run.intervals, betas).rename(columns={"coefficients": "method"})
    return table.assign(split=split, run=run.name, model=run.deployment.model.name)
