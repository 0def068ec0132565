"""Score the learners of llm-d's latency predictor on recorded traffic, with and without seed data.

    python scripts/score_llmd_seed.py FOLDER_OF_TRACES [FOLDER_OF_A_SEED]

Seed data consists of simulated training entries. The script fits each learner to seed data alone,
to the first 100 recorded rows, and to both. It scores the learners on later rows of each trace in
which no request waits. Prints median APE and quantile loss at 0.9 (relative to the measured value),
then the ratio of predicted to measured latency by bin of prompt length and running requests.
Without the second folder, seed data is exported for Qwen3-32B on an H200, the deployment in the
traces. The last line is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import BayesianRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBRegressor

import pinn

#: Deployment of the traces: two replicas with one GPU each, without prefix caching. Their vLLM
#: release and token budget are unknown. The budget is inferred from the rows in which requests
#: wait, which are not scored. Every step of these rows is full, and the median TPOT is 37 ms with
#: about 13 decodes. A step is predicted to take 32 ms with a budget of 256 tokens, 54 ms with 512
#: and 817 ms with the default of 8,192.
DEPLOYMENT = {
    "model": "Qwen/Qwen3-32B", "gpu": "H200", "max_model_len": 16384,
    "enable_prefix_caching": False, "max_num_batched_tokens": 256,
}  # fmt: skip
TRACES = ("sharegpt-h200", "bimodal-h200")
METRICS = ("tpot", "ttft")
FEATURES = [
    "kv_cache_percentage", "input_token_length", "num_request_waiting", "num_request_running",
    "num_tokens_generated", "prefix_cache_score", "prefill_tokens_in_flight",
    "decode_tokens_in_flight",
]  # fmt: skip
#: Types and objectives of the predictor's models, with each library's default settings. LightGBM is
#: replaced by scikit-learn's histogram-based trees with LightGBM's settings.
LEARNERS: dict[str, Callable[[], Any]] = {
    "xgboost, mean": lambda: XGBRegressor(n_jobs=1),
    "xgboost, quantile": lambda: XGBRegressor(
        n_jobs=1, objective="reg:quantileerror", quantile_alpha=QUANTILE
    ),
    "lightgbm, mean": HistGradientBoostingRegressor,
    "lightgbm, quantile": lambda: HistGradientBoostingRegressor(loss="quantile", quantile=QUANTILE),
    "bayesian ridge": lambda: make_pipeline(StandardScaler(), BayesianRidge()),
}
QUANTILE = 0.9
#: Number of recorded rows that models are fitted to, with or without simulated training entries
#: (seed data).
FIRST = 100
PROMPTS, RUNNING = [0, 100, 1000, 4000, 7000, 13_000], [0, 2, 4, 8, 16, 32]


def read_rows(path: Path) -> pd.DataFrame:
    """Return recorded or seed entries, with ``prefix_cache_score`` set to 0.

    The traces were recorded without prefix caching.
    """
    rows = pd.read_json(path, lines=True, convert_dates=False)
    return rows.assign(prefix_cache_score=0.0)


def predicted(learner: str, metric: str, rows: pd.DataFrame, asked: pd.DataFrame) -> np.ndarray:
    """Fit a learner to the rows that have a metric, and predict the metric of ``asked`` in ms."""
    known = rows[rows[f"actual_{metric}_ms"] > 0]
    fitted = LEARNERS[learner]().fit(known[FEATURES].to_numpy(float), known[f"actual_{metric}_ms"])
    return np.asarray(fitted.predict(asked[FEATURES].to_numpy(float)))


def evaluated(trace: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the rows of a trace to score, which follow the fitted rows.

    They have the metric, and no request waits in them.
    """
    later = trace[FIRST:]
    return later[(later[f"actual_{metric}_ms"] > 0) & (later["num_request_waiting"] == 0)]


def scores(
    seed: pd.DataFrame, traces: dict[str, pd.DataFrame], learners: list[str]
) -> pd.DataFrame:
    """Return median APE, quantile loss and coverage of learners, by the data they are fitted to."""
    found = []
    for name, trace in traces.items():
        first = trace[:FIRST]
        sets = {"seed": seed, "both": pd.concat([seed, first]), "first rows": first}
        for metric in METRICS:
            rows = evaluated(trace, metric)
            measured = rows[f"actual_{metric}_ms"].to_numpy()
            for learner in learners:
                for fitted_to, fitted in sets.items():
                    ratio = predicted(learner, metric, fitted, rows) / measured
                    under = 1 - ratio
                    loss = np.maximum(QUANTILE * under, (QUANTILE - 1) * under)
                    found.append(
                        {
                            "trace": name, "metric": metric, "learner": learner,
                            "fitted to": fitted_to,
                            "median APE %": 100 * float(np.median(np.abs(under))),
                            "quantile loss %": 100 * float(loss.mean()),
                            "covered %": 100 * float((under <= 0).mean()),
                        }
                    )  # fmt: skip
    return pd.DataFrame(found)


def by_bin(seed: pd.DataFrame, trace: pd.DataFrame, metric: str, learner: str) -> pd.DataFrame:
    """Return the median ratio of predicted to measured latency, by prompt length and requests."""
    rows = evaluated(trace, metric)
    ratio = predicted(learner, metric, seed, rows) / rows[f"actual_{metric}_ms"]
    bins = [
        pd.cut(rows["input_token_length"], PROMPTS),
        pd.cut(rows["num_request_running"], RUNNING, right=False),
    ]
    return ratio.groupby(bins, observed=True).median().unstack().round(2)


def default_seed() -> pd.DataFrame:
    """Return the seed entries that ``pinn export llm-d`` writes for the traced deployment."""
    with TemporaryDirectory() as folder:
        pinn.export_llm_d(folder, DEPLOYMENT)
        (entries,) = Path(folder).rglob("entries.jsonl")
        return read_rows(entries)


def main(traces: Path, seed: Annotated[Path | None, typer.Argument()] = None) -> None:
    rows = default_seed() if seed is None else read_rows(seed / "entries.jsonl")
    recorded = {name: read_rows(traces / f"{name}.jsonl.gz") for name in TRACES}
    table = scores(rows, recorded, list(LEARNERS))
    for column in ("median APE %", "quantile loss %", "covered %"):
        shown = table.pivot(
            index=["trace", "metric", "learner"], columns="fitted to", values=column
        )
        print(f"{column}\n{shown.round(1).to_string()}\n")
    learner = next(iter(LEARNERS))
    for name, trace in recorded.items():
        for metric in METRICS:
            print(f"{metric} of {name}, {learner}, fitted to the seed: predicted / measured")
            print(by_bin(rows, trace, metric, learner).to_string(na_rep=""), "\n")
    print(json.dumps(table.round(3).to_dict("records")))


if __name__ == "__main__":
    typer.run(main)
