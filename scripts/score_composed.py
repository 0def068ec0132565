"""Measured deployments of a model against steps composed of kernels, without the network.

    python scripts/score_composed.py 'Qwen3.5|GLM-5' [checkpoints/kernels/all]

A teacher's betas (kernels and the scalars that the checkpoint learned) simulate each row's
benchmark as ``pinn evaluate engines`` does with the network's. One line per GPU and format: rows,
TPOT and TTFT as median / mean absolute % (bias).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pinn.coefficients.surrogate import predict_coefficients
from pinn.coefficients.trained_network import load_checkpoint
from pinn.common.files import find_checkpoint
from pinn.kernels.surrogates import KernelSurrogates
from pinn.laboratory.engines import engine_rows
from pinn.laboratory.metrics import error_summary
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Job, map_runs
from pinn.training.data.deployments import measured_deployment
from pinn.training.teacher import Teacher, saved_scalars


def main(wanted: str, kernels: Path) -> None:
    """Print the errors of every GPU and format, and of all rows of a model."""
    rows = engine_rows()
    rows = rows[rows["model"].str.contains(wanted)]
    checkpoint = load_checkpoint(find_checkpoint())
    scalars = saved_scalars(checkpoint.metadata["scalars"])
    teacher = Teacher(KernelSurrogates.load(kernels), scalars)
    ones = [measured_deployment(row) for _, row in rows.iterrows()]
    deployments = [one.deployment for one in ones]
    alpha = predict_coefficients(checkpoint.network, deployments).alpha
    jobs = [
        Job(one.served, one.workload, LinearLatency(one.served, beta, waits))
        for one, beta, waits in zip(ones, teacher.betas(deployments), alpha, strict=True)
    ]
    found = np.array(
        map_runs(
            lambda _, run: (
                np.nanmean(run.requests.mean_itl_s[run.requests.finished]),
                run.requests.ttft_s[run.requests.finished].mean(),
            ),
            jobs,
        )
    )
    scored = rows.assign(tpot=found[:, 0], ttft=found[:, 1])
    for columns in (["model"], ["model", "gpu", "precision"]):
        for key, part in scored.groupby(columns):
            cells = [
                error_summary(part[name].to_numpy(), part[f"{name}_s"].to_numpy())
                for name in ("tpot", "ttft")
            ]
            text = (f"{c['median']:.1f} / {c['mean']:.1f} ({c['bias']:+.1f})" for c in cells)
            print(*key, len(part), *text, sep=" | ")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("error: expected part of a model's name, and a folder of kernels")
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) == 3 else "checkpoints/kernels/all"))
