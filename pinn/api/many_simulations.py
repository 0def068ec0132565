"""Simulation of many configurations under one or several loads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinn.api.arguments import python_names, read_request, with_arguments
from pinn.api.loads import workload_file
from pinn.api.prediction import as_frame, configuration_rows
from pinn.api.requests import SimulationRequest, named
from pinn.api.simulation import intervals_of, one_rate, report_options, simulation_job
from pinn.common.numbers import amount
from pinn.common.progress import doing
from pinn.engines.configurations import KEYS, Values, canonical
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError, warn_user
from pinn.export.configured import engine_release
from pinn.memory.start_up import start_warning
from pinn.simulator.intervals import BOUNDED, Intervals
from pinn.simulator.result import Reported, Simulation
from pinn.simulator.run import Run
from pinn.simulator.simulate import Job
from pinn.simulator.statistics import PERCENTILES, percentile_name
from pinn.simulator.workloads.load import LoadFlags, asked_load
from pinn.specs.flags import FlagValue, flags_apart
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from pinn.api.loads import AnyWorkload
    from pinn.api.prediction import AnyConfigurations

_SPECIFICATIONS = (ServingSpec, EngineSpec, LoadFlags)
#: Result of one row: values by column.
_Row = dict[str, object]
#: Names of the last columns.
_LAST = ("overloaded", "reason")
#: Names of columns that precede the metrics: the engine's release, and the KV cache's format.
_SERVER = ("engine_release", "kv_cache_format")
#: Columns of an SLO.
_OF_SLO = ("slo_met", "slo_attainment", "goodput_per_s")
#: Words for the bounds of an interval in names of columns.
_ENDS = ("low", "high")
#: Metrics that have a column even if no row can be simulated.
_ALWAYS = ("responses_per_sec", "tokens_per_sec",
           *(f"{metric}_{name}_ms" for metric in ("ttft", "tpot", "itl", "e2e")
             for name in ("mean", *map(percentile_name, PERCENTILES))))  # fmt: skip


@with_arguments(*_SPECIFICATIONS, request=SimulationRequest, deploys=True)
def simulate_many(
    workload: AnyWorkload | Sequence[AnyWorkload],
    configurations: AnyConfigurations,
    model: str | Path | None = None,
    gpu: str | Path | None = None,
    intervals: bool = False,
    **given: object,
) -> pd.DataFrame:
    """Serve a workload on each of many configurations, as ``pinn simulate`` does on one.

    >>> load = {"prompt_tokens": 512, "output_tokens": 64, "concurrency": 8, "requests": 40}
    >>> wanted = [{"gpu": "H100"}, {"gpu": "H200"}, {"gpu": "H100", "tp": 3}]
    >>> found = simulate_many(load, wanted, "meta-llama/Llama-3.1-8B", slo="p99 e2e<=10s")
    >>> found["slo_met"].tolist()
    [True, True, <NA>]
    >>> bool(found["e2e_p99_ms"][0] > found["e2e_p99_ms"][1])
    True
    >>> found = simulate_many(load, wanted, "meta-llama/Llama-3.1-8B", intervals=True)
    >>> bool(found["e2e_p99_low_ms"][0] < found["e2e_p99_ms"][0] < found["e2e_p99_high_ms"][0])
    True

    Args:
        workload: Workload in any form that :func:`simulate` accepts; or a list of workloads, under
            each of which all configurations are simulated. None if flags describe the load.
        configurations: Configurations in any form that :func:`predict_many` accepts, with model,
            gpu and engine flags as keys.
        model: Name, or path of a config.json or its folder, of rows that do not set it.
        gpu: Name, or path of a datasheet's JSON file, of rows that do not set it.
        intervals: Whether the table has the 90 % intervals of throughput and of the means and 99th
            percentiles of latencies, which take two more simulations per row.
        **given: Keyword arguments listed below; engine flags apply to rows that do not set them.

    Returns:
        Table with one row per configuration, in the given order and with the index of a given
        DataFrame. With a list of workloads, the rows of each workload follow one another, and the
        first column ``load`` is the workload's position in the list. The next columns are the
        user's identifiers, and model, GPU and flags as in the table of :func:`predict_many`. They
        are followed by ``engine_release``, such as ``vllm 0.33.0``, ``kv_cache_format``, and the
        metrics of :attr:`Simulation.metrics`, such as ``responses_per_sec``,
        ``ttft_p99_ms``, ``tpot_p99_ms``, ``itl_p99_ms``, ``e2e_p99_ms`` and
        ``scheduling_delay_p99_ms`` (queue time). With ``slo``, ``slo_met``, ``slo_attainment``
        (share of requests) and ``goodput_per_s`` follow. With ``intervals``, columns such as
        ``ttft_mean_low_ms`` and ``ttft_mean_high_ms`` follow, which are null if the widths are
        unknown. The last columns are ``overloaded``, a sentence about a server that could not keep
        up with the load, and ``reason``: why a row has no metrics, or why its server may not start;
        else null. A warning states the number of rows without metrics.

    Raises:
        PinnError: If a flag or key is unknown, or the load cannot be read.
    """
    import pandas as pd

    loads: Sequence[Any] = workload if _are_loads(workload) else [workload]  # type: ignore[assignment]
    spelled: dict[str, str] = {}
    rows = configuration_rows(configurations, spelled)
    tables = []
    for place, load in enumerate(loads):
        with workload_file(load) as path:
            own = {"workload": path, "model": model, "gpu": gpu}
            asked, flags = read_request(SimulationRequest, given, *_SPECIFICATIONS, **own)
            table = _simulated_table(asked, flags, rows, spelled, intervals)
            found = as_frame(table, configurations)
        if loads is workload:
            found.insert(0, "load", place)
        tables.append(found)
    return pd.concat(tables)


def _are_loads(workload: object) -> bool:
    """Return whether a value is a list of workloads, instead of a list of requests."""
    if not isinstance(workload, list | tuple) or not workload:
        return False
    return not any(isinstance(each, Mapping) and "arrival_s" in each for each in workload)


def _simulated_table(
    asked: SimulationRequest,
    flags: Mapping[str, FlagValue],
    rows: Sequence[Values],
    spelled: Mapping[str, str],
    with_intervals: bool,
) -> pa.Table:
    """Return the table of configurations and their metrics under one load.

    Raises:
        PinnError: If the load cannot be read, or an argument applies to one configuration only.
    """
    import pyarrow as pa

    from pinn.export.coefficient_table import given_table

    if asked.sensitivity is not None:
        raise PinnError("--sensitivity applies to one configuration: use pinn.simulate")
    rate_per_s = next(iter(one_rate(asked, "or call the function once per rate")), None)
    _, others = flags_apart(LoadFlags, flags)
    shared = canonical(named(asked.model, asked.gpu) | flags_apart(EngineSpec, others)[1])
    rows = [shared | row for row in rows]
    models = [str(model) if (model := row.get("model")) else None for row in rows or [shared]]
    # Errors of the load are raised; errors of a configuration become the reason of its row.
    load, others = asked_load(asked.workload, flags, asked.seed, model=models[0])
    reported = report_options(asked, load.draw(rate_per_s))
    doing(amount(len(rows), "configuration"))
    jobs: list[Job | PinnError] = []
    for row, model in zip(rows, models, strict=False):
        settings = others | {name: value for name, value in row.items() if name in KEYS}
        try:
            load, _ = asked_load(asked.workload, flags, asked.seed, model=model)
            jobs.append(simulation_job(asked, load, settings, rate_per_s))
        except PinnError as error:
            jobs.append(error)
    trust_of = partial(intervals_of, asked=asked) if with_intervals else None
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        metrics_of = partial(_metrics, reported=reported, trust_of=trust_of)
        found = list(pool.map(metrics_of, jobs))
    _warn_of_faults(found)
    no_metrics = {*_SERVER, *_LAST}
    metrics = dict.fromkeys(name for each in found for name in each if name not in no_metrics)
    if asked.slo is not None:
        metrics |= dict.fromkeys(_OF_SLO)
    if with_intervals:
        metrics |= dict.fromkeys(_bounds(Intervals(figures=dict.fromkeys(BOUNDED, (0.0, 0.0)))))
    names = [*_SERVER, *dict.fromkeys((*_ALWAYS, *metrics)), *_LAST]
    columns = {name: pa.array([each.get(name) for each in found]) for name in names}
    given = given_table(rows, spelled, ("model", "gpu", *shared, *spelled))
    return pa.table(dict(zip(given.column_names, given.columns, strict=True)) | columns)


def _metrics(
    job: Job | PinnError,
    reported: Reported,
    trust_of: Callable[[Run, Job], Intervals | None] | None,
) -> _Row:
    """Return the metrics of a simulation and their intervals, or the reason why it cannot run."""
    try:
        if isinstance(job, PinnError):
            raise job
        run = job.run()
        found = Simulation(job.deployment, run, reported=reported)
        bounds = _bounds(trust_of(run, job)) if trust_of else {}
    except PinnError as error:
        return {"reason": python_names(str(error), simulate_many)}
    values: _Row = {
        "engine_release": engine_release(job.deployment),
        "kv_cache_format": job.deployment.kv_cache_precision.name,
        **found.metrics,
    }
    if (met := found.goodput) is not None:
        values["slo_met"], values["slo_attainment"] = met.met, met.attainment
        values["goodput_per_s"] = met.requests_per_s
    warned = start_warning(job.deployment, job.engine or EngineSpec())
    reason = None if warned is None else python_names(warned, simulate_many)
    return values | bounds | {"overloaded": found.overloaded, "reason": reason}


def _bounds(intervals: Intervals | None) -> _Row:
    """Return the bounds of intervals by column; no columns if there are no intervals."""
    found: _Row = {}
    for metric, bounds in (intervals.figures if intervals else {}).items():
        stem, unit, _ = metric.partition("_ms")
        found |= {f"{stem}_{end}{unit}": bound for end, bound in zip(_ENDS, bounds, strict=True)}
    return found


def _warn_of_faults(found: Sequence[_Row]) -> None:
    """Warn of rows without metrics."""
    faults = [each["reason"] for each in found if "overloaded" not in each]
    if faults:
        counted = f"{len(faults):,} of {amount(len(found), 'configuration')} cannot be simulated"
        warn_user(
            f"{counted}: the column 'reason' gives the reason for each, for example: {faults[0]}"
        )
