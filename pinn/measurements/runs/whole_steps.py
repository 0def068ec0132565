"""Reader of measured engine steps: each step's batch and time.

A table has one row per iteration of an engine on one data-parallel rank, as vLLM 0.20's forward
pass metrics write it. ``runs.csv`` in the same folder has the flags of each run. Training and
evaluation use the median time of each type of step (equal batches).

Three kinds of steps are dropped and counted:

- steps without requests
- warm-up steps, which take more than ``COLD`` times the median of their type
- steps that are faster than the roofline lower bound, because the log assigns their time to an
  adjacent step; adjacent steps are also dropped
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from pinn.common.files import ReadReport, file_sha256
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.measurements.traces.measured_steps import alike_batches
from pinn.measurements.traces.step_table import COUNTS, LATENCY
from pinn.physics.batch_sums import UniformBatches
from pinn.physics.costs import step_costs
from pinn.physics.step_values import experts_hit, floor_seconds
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.units import MILLISECOND

RUNS_FILE = "runs.csv"
#: A step counts as warm-up if it takes more than this multiple of its type's median time.
COLD = 3.0
#: Maximum share of a run's prompt steps that may be faster than the memory bandwidth allows. Above
#: this share, all of the run's steps with prompts are dropped.
MISCOUNTED_SHARE = 0.05
#: Share of the expected weight reads of activated experts, beyond the first expert, in the lower
#: bound of a step's time. Which experts a step activates was not measured.
SURELY_READ = 0.5
#: Steps are of one type if their context and prompt lengths differ by at most this relative amount.
ALIKE = 0.125

#: Runs dropped for inconsistent logs. In this run, a step of 4 decodes takes 28.8 ms and a step of
#: 6 decodes 12.7 ms.
ALL_MISCOUNTED = ("fpm_upfront_dsv4_flash_moe_full_once_20260613_211059/tp1_ep1_past4096",)

BATCH = tuple(field.name for field in fields(UniformBatches))
_COLUMNS = ("run", "model", "tp", "dp", "ep_on", "kv_dtype", "counter_id", "dp_rank",
            *COUNTS, LATENCY)  # fmt: skip
_RUN_COLUMNS = ("run", "vllm", "max_num_seqs", "enable_prefix_caching", "fuse_allreduce_rms")

Row = Mapping[Hashable, Any] | pd.Series
Tokens = TypeVar("Tokens", pd.Series, pd.DataFrame)


@dataclass(frozen=True)
class MeasuredSteps:
    """Types of steps (steps with equal batches) of one deployment, with their median times.

    Attributes:
        run: Name of the run.
        deployment: Deployment that was measured.
        batches: Batch of each type: decodes of equal context together with equal prefill chunks.
        seconds: Median time of each type, in seconds.
        count: Number of steps of each type.
    """

    run: str
    deployment: Deployment
    batches: UniformBatches
    seconds: Float[np.ndarray, " kinds"]
    count: Int[np.ndarray, " kinds"]


def read_whole_steps(
    path: Path, gpu: str, graph_tokens: int | None = None
) -> tuple[list[MeasuredSteps], ReadReport]:
    """Read a CSV table of measured engine steps.

    Args:
        path: CSV file, compressed or not, with ``runs.csv`` next to it.
        gpu: GPU of the runs, which the table does not specify.
        graph_tokens: Tokens in the largest CUDA graph, if the runs' flags do not specify it.

    Raises:
        PinnError: If a file is missing or lacks a column, or no step is usable.
    """
    table = read_table(path, _COLUMNS)
    runs = read_table(path.with_name(RUNS_FILE), _RUN_COLUMNS).set_index("run")
    steps, refused = [], dict.fromkeys(("model is not read", "no work", "cold", "miscounted"), 0)
    for name, rows in table.groupby("run", sort=True):
        deployment = _deployment(rows.iloc[0], runs, gpu, graph_tokens)
        if deployment is None:
            refused["model is not read"] += len(rows)
            continue
        kept = _with_work(rows)
        refused["no work"] += len(rows) - len(kept)
        kind = kinds_of_steps(kept)
        cold = kept["seconds"] > COLD * kept.groupby(kind)["seconds"].transform("median")
        refused["cold"] += int(cold.sum())
        kept, kind = kept[~cold], kind[~cold]
        credited = _credited(kept, deployment) | (name in ALL_MISCOUNTED)
        refused["miscounted"] += int(credited.sum())
        if not credited.all():
            steps.append(median_steps(str(name), kept[~credited], kind[~credited], deployment))
    accepted = sum(int(one.count.sum()) for one in steps)
    if not accepted:
        raise PinnError(f"{path}: none of its {len(table)} steps can be used ({refused})")
    return steps, ReadReport(path.name, "", file_sha256(path), len(table), accepted, refused)


def read_table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """Read a CSV table, compressed or not, and check that it has the given columns."""
    if not path.is_file():
        raise PinnError(
            f"the table of measured steps {path} does not exist: give the path of the table, with "
            "runs.csv in the same folder"
        )
    try:
        table = pd.read_csv(path)
    except (ValueError, OSError, EOFError) as error:
        raise PinnError(
            f"{path} is not a CSV table ({error}): give a table of measured steps"
        ) from error
    missing = [name for name in columns if name not in table]
    if missing:
        raise PinnError(f"{path} lacks the column(s) {', '.join(missing)}: add the column(s)")
    return table


def _deployment(
    row: Row, runs: pd.DataFrame, gpu: str, graph_tokens: int | None
) -> Deployment | None:
    """Return the deployment of a run; None if its model is not supported."""
    name = str(row["model"])
    if str(row["run"]) not in runs.index:
        raise PinnError(
            f"{RUNS_FILE} has no line for the run {row['run']}: add a line with the run's flags"
        )
    flags = runs.loc[str(row["run"])].to_dict()
    serving = ServingSpec(
        engine_version=str(flags["vllm"]),
        tensor_parallel_size=int(row["tp"]),
        data_parallel_size=int(row["dp"]),
        enable_expert_parallel=bool(row["ep_on"]),
        kv_cache_dtype=str(row["kv_dtype"]),
        max_num_seqs=int(flags["max_num_seqs"]),
        enable_prefix_caching=bool(flags["enable_prefix_caching"]),
        fuse_all_reduce=bool(flags["fuse_allreduce_rms"]),
        max_cudagraph_capture_size=graph_tokens,
    )
    try:
        return Deployment(load_model(name), load_gpu(gpu), serving)
    except PinnError:
        return None


def _with_work(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the steps that have requests, in order, as uniform batches with times in seconds."""
    rows = rows.sort_values(["dp_rank", "counter_id"], kind="stable")
    found = pd.DataFrame(vars(alike_batches(rows)))
    found["seconds"] = rows[LATENCY].to_numpy() * MILLISECOND
    return found[found["decode_requests"] + found["prefill_requests"] > 0]


def kinds_of_steps(steps: pd.DataFrame) -> pd.Series:
    """Return each step's type as a number, from its requests and length classes."""
    lengths = steps[["decode_context", "prefill_tokens", "prefill_cached"]]
    keys = steps[["decode_requests", "prefill_requests"]].join(length_class(lengths))
    return keys.groupby(list(keys.columns), sort=False).ngroup()


def length_class(tokens: Tokens) -> Tokens:
    """Return the class of each length in tokens; a class spans a factor of 1 + ``ALIKE``."""
    return np.floor(np.log1p(tokens) / np.log1p(ALIKE))


def _credited(steps: pd.DataFrame, deployment: Deployment) -> Bool[np.ndarray, " steps"]:
    """Return a mask of steps whose logged time is impossibly short, and of adjacent steps.

    A time is impossible below the roofline lower bound, which includes the share ``SURELY_READ`` of
    the weight reads for the experts that the tokens activate.
    """
    sums, costs = _batches(steps).sums(deployment.model.window_tokens), step_costs([deployment])
    least_s = floor_seconds(costs, sums) + SURELY_READ * experts_hit(costs, sums)
    fast = steps["seconds"].to_numpy() < least_s
    prompts = steps["prefill_requests"].to_numpy() > 0
    near = fast.copy()
    near[1:] |= fast[:-1]
    near[:-1] |= fast[1:]
    return near | (prompts & (fast[prompts].mean() > MISCOUNTED_SHARE if prompts.any() else False))


def median_steps(
    run: str, steps: pd.DataFrame, kind: pd.Series, deployment: Deployment
) -> MeasuredSteps:
    """Return the mean batch and the median time of each type of step of one deployment."""
    groups = steps.groupby(kind)
    batches, seconds = _batches(groups[list(BATCH)].mean()), groups["seconds"].median().to_numpy()
    count = groups.size().to_numpy()
    return MeasuredSteps(run, deployment, batches, seconds, count)


def _batches(steps: pd.DataFrame) -> UniformBatches:
    return UniformBatches(*(steps[name].to_numpy() for name in BATCH))
