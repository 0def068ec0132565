"""Simulation of a workload on one server, on prefill and decode pools, or on a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import pinn
from pinn.api.arguments import read_request, with_arguments
from pinn.api.loads import workload_file
from pinn.api.requests import ServersRequest, SimulationRequest, named
from pinn.calibration.load_range import load_warnings
from pinn.calibration.posterior import percentile_half_widths, server_half_widths, trust_sentences
from pinn.common import Json, JsonObject
from pinn.common.documents import comma_separated
from pinn.common.files import file_sha256, find_checkpoint, given_path
from pinn.common.numbers import amount
from pinn.common.progress import doing
from pinn.engines.configurations import canonical, make_deployment, parse_pool
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.recipe import unread_notice
from pinn.errors import PinnError, warn_user
from pinn.memory.logged_cache import with_log
from pinn.memory.start_up import start_warning
from pinn.memory.startup_log import read_startup_log
from pinn.simulator import pools
from pinn.simulator.fleets.result import FleetSimulation
from pinn.simulator.fleets.run import simulate_fleet as run_fleet
from pinn.simulator.fleets.spec import FleetSpec, fleet_of, read_fleet
from pinn.simulator.intervals import Intervals, simulated_intervals, standing_step
from pinn.simulator.linear_latency import latency_from_checkpoint, latency_from_json
from pinn.simulator.pools_result import PoolsSimulation
from pinn.simulator.result import Reported, Simulation
from pinn.simulator.run import Run
from pinn.simulator.sensitivity import sensitivity
from pinn.simulator.simulate import Job
from pinn.simulator.slo import parse_slo
from pinn.simulator.statistics import read_percentiles
from pinn.simulator.sweep import RateSweep, swept
from pinn.simulator.workloads.load import Load, LoadFlags, asked_load
from pinn.simulator.workloads.workload import Workload
from pinn.specs.flags import FlagValue, flags_apart
from pinn.specs.serving import ServingSpec
from pinn.surrogate.coefficient_set import CoefficientSet, deployment_facts, read_coefficient_set
from pinn.surrogate.encoder_time import encoder_time
from pinn.surrogate.evidence import source_names
from pinn.surrogate.uncertainty.distance import outside_inputs
from pinn.surrogate.uncertainty.intervals import METRICS, read_calibration
from pinn.surrogate.uncertainty.kinds import situation_of
from pinn.surrogate.uncertainty.network_evidence import describe_trust
from pinn.surrogate.uncertainty.quantiles import LEVEL
from pinn.units import GIGA

if TYPE_CHECKING:
    from pinn.api.loads import AnyWorkload

_SPECIFICATIONS = (ServingSpec, EngineSpec, LoadFlags)


@with_arguments(*_SPECIFICATIONS, request=SimulationRequest, deploys=True)
def simulate(
    workload: AnyWorkload = None,
    model: str | Path | None = None,
    gpu: str | Path | None = None,
    **given: object,
) -> Simulation:
    """Serve a workload on a simulated engine, as ``pinn simulate`` does.

    >>> load = {"prompt_tokens": 512, "output_tokens": 64, "concurrency": 8, "requests": 40}
    >>> found = simulate(load, "meta-llama/Llama-3.1-8B", "H100", max_num_seqs=4)
    >>> found.figures["completed_requests"], found.figures["running_max"]
    (40, 4)
    >>> alike = simulate(model="meta-llama/Llama-3.1-8B", gpu="H100", input_len=512, output_len=64,
    ...                  concurrency=8, num_prompts=40, max_num_seqs=4)
    >>> alike.figures["e2e_mean_ms"] == found.figures["e2e_mean_ms"]
    True
    >>> bool(found.requests()["ttft_s"].max() < found.requests()["e2e_s"].max())
    True

    Args:
        workload: File that ``pinn simulate --workload`` accepts; or the content of a plain YAML
            file as a mapping; or a DataFrame, or a list of mappings, with ``arrival_s``,
            ``prompt_tokens`` and ``output_tokens``. None if flags describe the load, such as
            ``input_len=1024, output_len=256, concurrency=64``.
        model: Name, or path of a config.json or its folder.
        gpu: Name, or path of a datasheet's JSON file.
        **given: Keyword arguments listed below, and flags of the engine and the load.

    Raises:
        PinnError: If a name or flag is unknown, flags contradict each other, or the load cannot be
            served.
    """
    with workload_file(workload) as path:
        own = {"workload": path, "model": model, "gpu": gpu}
        asked, flags = read_request(SimulationRequest, given, *_SPECIFICATIONS, **own)
        return simulated(asked, flags, *one_rate(asked, "or pinn.sweep"))


@with_arguments(*_SPECIFICATIONS, request=(SimulationRequest, ServersRequest), deploys=True)
def sweep(
    rate: str | Sequence[float],
    workload: AnyWorkload = None,
    model: str | Path | None = None,
    gpu: str | Path | None = None,
    **given: object,
) -> RateSweep:
    """Serve a workload at several rates, as ``pinn simulate --rate 1,2,4`` does.

    >>> found = sweep([2, 4], None, "Llama-3.1-8B", "H100", input_len=512, output_len=16,
    ...               num_prompts=50, slo="ttft<=1s for 95 %")
    >>> found.highest_rate_per_s
    4.0

    Args:
        rate: Mean request rates to simulate, in requests/s.
        workload: Workload in any form that :func:`simulate` accepts.
        model: Name, or path of a config.json or its folder.
        gpu: Name, or path of a datasheet's JSON file.
        **given: Keyword arguments listed below, flags of the engine and the load, and arguments of
            :func:`simulate_pools`.

    Raises:
        PinnError: If a name or flag is unknown, flags contradict each other, or the load cannot be
            served.
    """
    named, apart = _servers_request(given)
    with workload_file(workload) as path:
        own = {"workload": path, "model": model, "gpu": gpu, "rate": rate, **named}
        asked, flags = read_request(SimulationRequest, given, *_SPECIFICATIONS, **own)
        return swept_rates(asked, apart, flags)


def _servers_request(given: dict[str, object]) -> tuple[dict[str, object], ServersRequest]:
    """Remove the arguments about pools and fleets from ``given``.

    Return the removed arguments, and a request object that contains them.
    """
    named = {f.name: given.pop(f.name, None) for f in fields(ServersRequest)}
    return named, read_request(ServersRequest, named)[0]


def swept_rates(
    asked: SimulationRequest, servers: ServersRequest, flags: Mapping[str, FlagValue]
) -> RateSweep:
    """Simulate a load at each of the requested rates.

    Raises:
        PinnError: If there is no rate, or a sensitivity is requested.
    """
    if asked.sensitivity is not None:
        raise PinnError(
            "--sensitivity applies to a single rate: give one --rate, or omit --sensitivity"
        )
    rates = read_rates(asked.rate)
    if not rates:
        raise PinnError("rate is missing: give the rates of the sweep, such as 1,2,4,8")
    return swept(rates, lambda one: served(asked, servers, flags, one))


def served(
    asked: SimulationRequest,
    servers: ServersRequest,
    flags: Mapping[str, FlagValue],
    rate_per_s: float | None = None,
) -> Simulation | PoolsSimulation | FleetSimulation:
    """Simulate a load at one rate, on one server, two pools or a fleet."""
    if servers == ServersRequest():
        return simulated(asked, flags, rate_per_s)
    if servers.fleet is not None and servers == ServersRequest(fleet=servers.fleet):
        return simulated_fleet(asked, read_fleet(servers.fleet), flags, rate_per_s)
    return simulated_pools(asked, servers, flags, rate_per_s)


def one_rate(asked: SimulationRequest, remedy: str) -> list[float]:
    """Return the requested rate in requests/s, as a list; [] if none is requested."""
    rates = read_rates(asked.rate)
    if len(rates) > 1:
        raise PinnError(
            f"rate must be a single rate, got {asked.rate} ({len(rates)} rates): give one rate, "
            f"{remedy}"
        )
    return rates


def read_rates(text: str | None) -> list[float]:
    """Parse comma-separated rates in requests/s; None gives an empty list.

    Raises:
        PinnError: If a rate is not a number.
    """
    if text is None:
        return []
    try:
        found = [float(word) for word in comma_separated(text)]
    except ValueError:
        found = []
    if not found:
        fault = (
            f"--rate must be one or more rates in requests/s, such as 8 or 1,2,4,8, got "
            f"{text!r:.60}"
        )
        raise PinnError(f"{fault}: give rates, or omit --rate")
    return found


def simulated(
    asked: SimulationRequest, flags: Mapping[str, FlagValue], rate_per_s: float | None = None
) -> Simulation:
    """Simulate one server under a load at ``rate_per_s``, or at the load's own rate if None."""
    load, flags = asked_load(asked.workload, flags, asked.seed, model=asked.model)
    job = simulation_job(asked, load, flags, rate_per_s)
    reported = report_options(asked, job.workload)
    doing(f"serving {amount(len(job.workload), 'request')}")
    run, file, figure = job.run(), asked.coefficients, asked.sensitivity
    given = None if file is None else read_coefficient_set(file)
    trust = intervals_of(run, job, asked)
    moved = None if figure is None else sensitivity(job, run, figure, reported.percentiles)
    about = _about(job, load, asked, rate_per_s, _warned(asked, run, rate_per_s, job))
    calibrated = given is not None and bool(given.calibration)
    return Simulation(job.deployment, run, trust, moved, about, reported, calibrated)


def report_options(asked: SimulationRequest, workload: Workload) -> Reported:
    """Return the percentiles and the SLO to report.

    Raises:
        PinnError: If the SLO cannot be read, or does not apply to the workload.
    """
    percentiles = () if asked.percentiles is None else read_percentiles(asked.percentiles)
    if asked.slo is None:
        return Reported(percentiles)
    slo = parse_slo(asked.slo, shareless=True)
    slo.check(workload.output_tokens)
    return Reported(percentiles, slo)


def simulation_job(
    asked: SimulationRequest,
    load: Load,
    flags: Mapping[str, FlagValue],
    rate_per_s: float | None = None,
) -> Job:
    """Return the inputs for simulating a load on a server; flags override the request."""
    of_engine, others = flags_apart(EngineSpec, flags)
    file, known, link = asked.coefficients, {}, {}
    if file is not None:
        found = read_coefficient_set(file)
        known, link = found.configuration(), found.link_flags()
    known |= named(asked.model, asked.gpu)
    deployment = make_deployment(canonical(known | others))
    workload = load.draw(rate_per_s)
    if asked.num_warmups or asked.warmup_s:
        first, seconds = asked.num_warmups, asked.warmup_s
        workload = replace(workload, warmup_requests=first, warmup_s=seconds)
    if file is None:
        latency = latency_from_checkpoint(deployment, find_checkpoint(asked.checkpoint))
    else:
        latency = latency_from_json(deployment, file)
    encoder = encoder_time(deployment, load.media, asked.checkpoint)
    if encoder is not None:
        warn_user(encoder.sentence)
        latency = replace(latency, encoder=encoder)
    engine = EngineSpec(**(link | of_engine))
    if asked.memory_log is not None:
        engine = with_log(engine, deployment, read_startup_log(asked.memory_log))
    return Job(deployment, workload, latency, engine)


def _warned(asked: SimulationRequest, run: Run, rate_per_s: float | None, *jobs: Job) -> list[str]:
    """Warn of servers that may not start and of loads unlike the calibration data.

    The warnings are returned. If several rates are requested, warnings of a load begin with its
    rate.
    """
    starts = (start_warning(job.deployment, job.engine or EngineSpec()) for job in jobs)
    found = [text for text in dict.fromkeys(starts) if text is not None]
    if asked.coefficients is not None:
        place = f"at {rate_per_s:g} requests/s: " if len(read_rates(asked.rate)) > 1 else ""
        of_load = load_warnings(read_coefficient_set(asked.coefficients), run)
        found += [f"{place}{text}" for text in of_load]
    for text in found:
        warn_user(text)
    return found


def _about(
    job: Job,
    load: Load,
    asked: SimulationRequest,
    rate_per_s: float | None,
    warned: Sequence[str] = (),
) -> JsonObject:
    """Return a description of the simulation from which its metrics can be reproduced."""
    facts = deployment_facts(job.deployment)
    facts["serving"] |= asdict(job.engine or EngineSpec())
    serving = job.deployment.serving
    notice = unread_notice(serving.engine, serving.engine_version)
    notices = [*filter(None, [notice]), *warned]
    source = asked.coefficients or find_checkpoint(asked.checkpoint)
    encoder = job.latency.encoder
    return {
        **facts,
        "recipe": job.deployment.recipe.described(),
        **({"notices": notices} if notices else {}),
        **({} if encoder is None else {"encoder": encoder.to_json()}),
        "workload": load.document | {"rate_per_s": rate_per_s, "seed": load.used_seed},
        "coefficients": {"path": str(source), "sha256": file_sha256(source)},
        "simulated_by": f"pinn {pinn.__version__}",
    }


def intervals_of(run: Run, job: Job, asked: SimulationRequest) -> Intervals | None:
    """Return the intervals of a simulation, from the network or the coefficient file."""
    if asked.coefficients is None:
        return network_intervals(run, job, find_checkpoint(asked.checkpoint))
    return posterior_intervals(run, job, read_coefficient_set(asked.coefficients))


def network_intervals(run: Run, job: Job, checkpoint: Path) -> Intervals:
    """Return 90 % intervals of a simulation's metrics from the network's held-out errors.

    If there are no intervals, the result states the reason.
    """
    if not run.requests.finished.any():
        return Intervals(missing="no request was served")
    try:
        calibration = read_calibration(checkpoint)
        situation = situation_of(checkpoint, job.deployment, standing_step(run))
        outside = outside_inputs(checkpoint, job.deployment)
    except PinnError as error:
        return Intervals(missing=str(error))
    step, ttft = (
        calibration.half_width(metric, job.deployment, situation.gpu_known) for metric in METRICS
    )
    distance = describe_trust(situation, outside, calibration)
    return simulated_intervals(job, run, (step, ttft), calibration.level, distance)


def posterior_intervals(run: Run, job: Job, found: CoefficientSet) -> Intervals | None:
    """Return the intervals of a simulation's metrics from a coefficient file's posterior.

    The result is None if the file has no posterior, or if no request was served.
    """
    if found.covariance is None or not run.requests.finished.any():
        return None
    halves = server_half_widths(found, job.deployment, standing_step(run))
    tails = percentile_half_widths(found, "p99")
    sentence = f"Calibrated to {source_names(found)}; the intervals are from this calibration."
    about = {"sentence": f"{sentence} {trust_sentences(found)}"}
    return simulated_intervals(job, run, halves, LEVEL, about, tails)


#: Replacements for options of a single engine when prefill and decode pools are used, by option.
_OF_ONE_ENGINE = {
    "replicas": "write the number of servers in each pool, such as --prefill '2x tp=4'",
    "kv_transfer_bytes_per_s": "give --kv-link-gb-per-s",
    "sensitivity": "omit --sensitivity, because it would change the coefficients of both types of "
    "workers",
    "memory_log": "omit --memory-log, because a log applies to a single server",
}


@with_arguments(*_SPECIFICATIONS, request=(SimulationRequest, ServersRequest), deploys=True)
def simulate_pools(
    workload: AnyWorkload = None,
    model: str | Path | None = None,
    gpu: str | Path | None = None,
    **given: object,
) -> PoolsSimulation:
    """Serve a workload on a prefill and a decode pool, as ``pinn simulate --prefill`` does.

    Args:
        workload: Workload in any form that :func:`simulate` accepts.
        model: Name, or path of a config.json or its folder.
        gpu: Name, or path of a datasheet's JSON file, for pools that do not specify a GPU.
        **given: Keyword arguments listed below; engine flags apply to both pools.

    Raises:
        PinnError: If an option applies only to a single engine, or the pools are incompatible.
    """
    named, apart = _servers_request(given)
    with workload_file(workload) as path:
        own = {"workload": path, "model": model, "gpu": gpu, **named}
        asked, flags = read_request(SimulationRequest, given, *_SPECIFICATIONS, **own)
        rates = one_rate(asked, "simulate each on its own")
        return simulated_pools(asked, apart, flags, *rates)


def simulated_pools(
    asked: SimulationRequest,
    apart: ServersRequest,
    flags: Mapping[str, FlagValue],
    rate_per_s: float | None = None,
) -> PoolsSimulation:
    """Simulate a load on a prefill and a decode pool, at the load's own rate if none is given."""
    load, flags = asked_load(asked.workload, flags, asked.seed, model=asked.model)
    for name, remedy in _OF_ONE_ENGINE.items():
        if flags.get(name) is not None or getattr(asked, name, None) is not None:
            option = f"--{name.replace('_', '-')}"
            raise PinnError(f"{option} cannot be combined with --prefill and --decode: {remedy}")
    if apart.fleet is not None:
        raise PinnError(
            "--fleet cannot be combined with --prefill and --decode: omit --fleet, or both other "
            "options"
        )
    of_prefill, of_decode = apart.prefill, apart.decode
    if of_prefill is None or of_decode is None:
        option = "--prefill" if of_prefill is None else "--decode"
        raise PinnError(
            f"{option} is missing: disaggregated prefill/decode needs both pools, such as "
            "--prefill '2x tp=4' --decode '1x tp=8' (--kv-link-gb-per-s is the link between them)"
        )
    of_pools = [parse_pool(of_prefill, "--prefill"), parse_pool(of_decode, "--decode")]
    jobs = [simulation_job(asked, load, {**flags, **own}, rate_per_s) for _, own in of_pools]
    reported = report_options(asked, jobs[0].workload)
    prefill, decode = (
        pools.Pool(job.deployment, job.latency, replace(job.engine or EngineSpec(), replicas=count))
        for job, (count, _) in zip(jobs, of_pools, strict=True)
    )
    network = pools.default_link(prefill, decode).bytes_per_s
    given = apart.kv_link_gb_per_s
    rate = network if given is None else given * GIGA
    link = pools.Link(rate, decode.engine.kv_transfer_latency_s)
    found = pools.simulate_pools(prefill, decode, jobs[0].workload, link)
    warned = _warned(asked, found.decode, rate_per_s, *jobs)
    about = [_about(job, load, asked, rate_per_s, warned) for job in jobs]
    return PoolsSimulation(found, prefill, decode, about, reported)


@with_arguments(*_SPECIFICATIONS, request=SimulationRequest, deploys=True)
def simulate_fleet(
    workload: AnyWorkload = None,
    model: str | Path | None = None,
    gpu: str | Path | None = None,
    fleet: str | Path | Mapping[str, Json] | None = None,
    **given: object,
) -> FleetSimulation:
    """Serve a workload on a fleet, as ``pinn simulate --fleet`` does.

    Args:
        workload: Workload in any form that :func:`simulate` accepts.
        model: Name, or path of a config.json or its folder.
        gpu: Name, or path of a datasheet's JSON file, for kinds of servers that do not specify a
            GPU.
        fleet: YAML file as for ``--fleet``, or its content as a mapping.
        **given: Keyword arguments listed below; engine flags apply to kinds that do not set them.

    Raises:
        PinnError: If a name or flag is unknown, or the kinds cannot be simulated together.
    """
    if fleet is None:
        raise PinnError("fleet is missing: give a YAML file, or a mapping such as {'kinds': [...]}")
    if not isinstance(fleet, Mapping | str | PathLike):
        example = "such as {'kinds': [{'gpu': 'H100'}]}"
        raise PinnError(f"fleet must be a path or a mapping, {example}, got {fleet!r:.60}")
    spec = fleet_of(fleet, "fleet") if isinstance(fleet, Mapping) else read_fleet(given_path(fleet))
    with workload_file(workload) as path:
        own = {"workload": path, "model": model, "gpu": gpu}
        asked, flags = read_request(SimulationRequest, given, *_SPECIFICATIONS, **own)
        return simulated_fleet(asked, spec, flags, *one_rate(asked, "simulate each on its own"))


def simulated_fleet(
    asked: SimulationRequest,
    spec: FleetSpec,
    flags: Mapping[str, FlagValue],
    rate_per_s: float | None = None,
) -> FleetSimulation:
    """Simulate a load on a fleet at ``rate_per_s``, or at the load's own rate if None."""
    load, flags = asked_load(asked.workload, flags, asked.seed, model=asked.model)
    if asked.sensitivity is not None:
        raise PinnError(
            "--sensitivity applies to a single deployment: omit --sensitivity or --fleet"
        )
    if asked.memory_log is not None:
        raise PinnError("--memory-log applies to a single server: omit --memory-log or --fleet")
    jobs = [_kind_job(asked, kind, load, flags, rate_per_s) for kind in spec.kinds]
    models = list(dict.fromkeys(job.deployment.model.name for job in jobs))
    if len(models) > 1:
        raise PinnError(
            f"the kinds of servers have different models ({' and '.join(models)}): "
            "give all kinds behind one router the same model"
        )
    kinds = [pools.Pool(job.deployment, job.latency, job.engine or EngineSpec()) for job in jobs]
    workload = jobs[0].workload
    reported = report_options(asked, workload)
    found = run_fleet(kinds, spec, workload)
    warned = _warned(asked, found.run, rate_per_s, *jobs)
    about = [_about(job, load, asked, rate_per_s, warned) for job in jobs]
    return FleetSimulation(found, kinds, spec, about, reported)


def _kind_job(
    asked: SimulationRequest,
    kind: Mapping[str, Json],
    load: Load,
    flags: Mapping[str, FlagValue],
    rate_per_s: float | None,
) -> Job:
    """Return the inputs for simulating a load on one kind of a fleet's servers."""
    named = {str(name).replace("-", "_"): value for name, value in kind.items()}
    of_engine, others = flags_apart(EngineSpec, named)
    own = canonical(others, "kinds: ")
    gpu = own.pop("gpu", asked.gpu)
    asked = replace(asked, gpu=None if gpu is None else str(gpu))
    return simulation_job(asked, load, {**flags, **own, **of_engine}, rate_per_s)
