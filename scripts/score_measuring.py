"""Score the design of ``pinn measure`` on simulated engines: python scripts/score_measuring.py.

The coefficients of each engine are sampled from the prior of its deployment. The engine's steps are
measured in simulated time, with batches in three orders: as designed, along a grid, and random.
After three, five and ten minutes the coefficients are fitted, and the target loads are predicted.
The last line is one JSON document.
"""

import json
import random
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice, product
from pathlib import Path

import numpy as np
import pandas as pd
import typer
from simulated_engine import SimulatedEngine

from pinn.calibration import measuring
from pinn.calibration.calibrated import fit_steps, measured_features
from pinn.calibration.measuring import AskedLoad
from pinn.calibration.prior import Prior, Start, all_features
from pinn.engines.configurations import canonical, make_deployment
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.measurements.program.batches import Limits, Wanted, own_order, short_list
from pinn.measurements.program.session import Session, measure_all
from pinn.measurements.program.table import Table
from pinn.measurements.traces.measured_steps import STEPS_FILE, read_measured_steps
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE

MINUTES = (3, 5, 10)
ARMS = ("design", "grid", "random")
MODELS = ("Llama-3.1-8B", "Llama-3.1-70B", "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B",
          "openai/gpt-oss-20b", "openai/gpt-oss-120b", "mistralai/Mixtral-8x7B-v0.1",
          "google/gemma-3-27b-it")  # fmt: skip
GPUS = ("A100", "H100", "H200", "B200", "L40S", "A10")


def deployments(count: int) -> dict[str, Deployment]:
    """Return deployments by label, each on the fewest GPUs with enough KV cache."""
    found: dict[str, Deployment] = {}
    for gpu, model in product(GPUS, MODELS):
        for size in (1, 2, 4, 8):
            with suppress(PinnError):
                given = canonical({"model": model, "gpu": gpu, "tensor_parallel_size": size})
                deployment = make_deployment(given)
                if measuring.deployment_limits(deployment).cache >= 60_000:
                    found[f"{model} on {size} {gpu}"] = deployment
                    break
    return dict(islice(found.items(), count))


def drawn(prior: Prior, seed: int) -> np.ndarray:
    """Sample coefficients from a prior, clipped to their bounds."""
    spread = np.sqrt(np.diag(prior.covariance))
    scale = np.where(spread > 0, spread, 1.0)
    values, vectors = np.linalg.eigh(prior.covariance / np.outer(scale, scale))
    normal = np.random.default_rng(seed).standard_normal(len(values))
    off = scale * (vectors @ (np.sqrt(np.maximum(values, 0.0)) * normal))
    return np.maximum(prior.mean + off * (spread > 0), prior.lower)


def asked_loads(seed: int) -> list[AskedLoad]:
    """Return four random loads whose latencies the measurement should predict accurately."""
    draw = random.Random(seed)
    several = (1, draw.choice((4, 8, 16)), draw.choice((32, 64)), draw.choice((128, 192, 256)))
    return [
        AskedLoad(clients, round(200 * 40 ** draw.random()), round(50 * 20 ** draw.random()))
        for clients in several
    ]


def orders(arm: str, deployment: Deployment, prior: Prior, limits: Limits, seed: int
           ) -> Iterable[Wanted]:  # fmt: skip
    """Return the batches to measure, in the order ``arm``: design, grid or random."""
    if arm == "grid":
        return own_order(limits)
    if arm == "random":
        batches = measuring.all_batches(limits)
        random.Random(seed).shuffle(batches)
        return batches
    designed = measuring.design(deployment, prior, MINUTES[-1], asked_loads(seed))
    return [*short_list(limits), *(batch for batch, _ in designed)]


def score(label: str, deployment: Deployment, noise: float, seed: int, folder: Path,
          minutes: Iterable[float] = MINUTES) -> pd.DataFrame:  # fmt: skip
    """Return errors and intervals of the target loads' metrics, by batch order and minutes."""
    start = Start(None, None, None)
    prior = start.prior(deployment, start.coefficients(deployment))
    truth, limits = drawn(prior, seed), measuring.deployment_limits(deployment)
    asked = all_features(measuring.load_features(deployment, asked_loads(seed), limits, prior.beta))
    true, before = asked @ truth, prior.spread(asked)
    tables = []
    for arm in ARMS:
        beta = truth[: len(STEP_FEATURES)]
        engine = SimulatedEngine(deployment, beta, limits, noise, np.random.default_rng(seed))
        at = folder / f"{arm}-{seed}-{noise}"
        table = Table(str(at), {})
        order = orders(arm, deployment, prior, limits, seed)
        measure_all(Session(engine, 60.0 * max(minutes)), order, table, lambda _: None)
        table.close()
        frame = pd.read_csv(at / STEPS_FILE)
        end_s = frame["start_s"] + frame["latency_ms"] / 1e3
        for limit in minutes:
            part = at / f"first-{limit}.csv"
            frame[end_s <= 60 * limit].to_csv(part, index=False)
            steps = read_measured_steps(part)
            features = measured_features(steps, deployment, prior.beta)
            found, _ = fit_steps(prior, features, steps.seconds, steps.error)
            error, spread = np.abs(asked @ found.mean / true - 1), found.spread(asked)
            tables.append(pd.DataFrame({
                "deployment": label, "noise": noise, "arm": arm, "minutes": limit,
                "batches": len(steps), "error": error, "width": spread / before,
                "before": np.abs(asked @ prior.mean / true - 1),
                "covered": error <= NORMAL_QUANTILE * spread,
            }))  # fmt: skip
    return pd.concat(tables, ignore_index=True)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return errors in percent, interval widths and coverage, by noise, minutes and batch order."""
    each = rows.groupby(["noise", "minutes", "arm", "deployment"])
    means = each[["error", "covered", "before"]].mean()
    means = means.assign(width=each["width"].median(), batches=each["batches"].max())
    groups = means.groupby(["noise", "minutes", "arm"], sort=False)
    found = groups.agg(
        deployments=("error", "size"), batches=("batches", "median"), before=("before", "median"),
        error=("error", "median"), mean_error=("error", "mean"), width=("width", "median"),
        covered=("covered", "mean"),
    )  # fmt: skip
    wide = means["error"].unstack("arm")
    for other in ARMS[1:]:
        share = (wide["design"] <= wide[other]).groupby(level=[0, 1]).mean()
        found[f"at least as good as {other}"] = [
            share[key[:2]] if key[2] == "design" else np.nan for key in found.index
        ]
    found[["before", "error", "mean_error", "covered"]] *= 100
    return found.reset_index()


def main(count: int = 40, noises: tuple[float, float] = (0.01, 0.05)) -> None:
    """Print the table of errors over ``count`` deployments, then its rows as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        each = product(enumerate(deployments(count).items()), noises)
        tables = [score(*one, noise, seed, Path(folder)) for (seed, one), noise in each]
    found = summary(pd.concat(tables))
    print(found.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    print(json.dumps(found.to_dict("records")))


if __name__ == "__main__":
    typer.run(main)
