"""What pinn simulate runs and says of it: figures, how sure they are, and what moves them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pinn
from pinn.api.requests import SimulationRequest, named
from pinn.calibration.posterior import posterior_step_half_widths
from pinn.common.files import file_sha256, find_checkpoint
from pinn.common.progress import doing
from pinn.common.screen import Grid, page, say
from pinn.engines import configurations
from pinn.engines.deployment import Deployment
from pinn.engines.recipe import unread_notice
from pinn.errors import PinnError
from pinn.planning.candidate import hardware_label
from pinn.simulator import pools, simulate
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.linear_latency import latency_from_checkpoint, latency_from_json
from pinn.simulator.run import Run, write_requests
from pinn.simulator.simulate import Job, ends, standing_step
from pinn.simulator.statistics import overload, print_report, run_statistics
from pinn.simulator.workloads.load import Load
from pinn.specs.flags import flags_apart
from pinn.specs.serving import VLLM
from pinn.surrogate.coefficient_set import CoefficientSet, deployment_facts, read_coefficient_set
from pinn.surrogate.uncertainty import intervals
from pinn.surrogate.uncertainty.distance import outside_inputs
from pinn.surrogate.uncertainty.intervals import METRICS
from pinn.surrogate.uncertainty.kinds import situation_of
from pinn.surrogate.uncertainty.quantiles import LEVEL
from pinn.surrogate.uncertainty.trust import describe_trust
from pinn.units import GIGA

#: A run, its intervals and what they rest on, and how far each coefficient moves a figure.
Served = tuple[Run, dict[str, Any] | None, dict[str, Any] | None]


def simulation_job(asked: SimulationRequest, load: Load, flags: dict[str, object]) -> Job:
    """What is simulated; flags go before the request."""
    of_engine, others = flags_apart(EngineSpec, flags)
    engine = EngineSpec(**of_engine)
    file = asked.coefficients
    known = {} if file is None else read_coefficient_set(file).configuration()
    known |= named(asked.model, asked.gpu)
    deployment = configurations.make_deployment(configurations.canonical(known | others))
    workload = load.draw(asked.rate)
    if file is None:
        latency = latency_from_checkpoint(deployment, find_checkpoint(asked.checkpoint))
    else:
        latency = latency_from_json(deployment, file)
    return Job(deployment, workload, latency, engine)


def serve(job: Job, asked: SimulationRequest) -> Served:
    """The run, its intervals where anything tells, and sensitivities where they are asked for."""
    doing(f"serving {len(job.workload):,} requests")
    run, file, figure = job.run(), asked.coefficients, asked.sensitivity
    trust: dict[str, object] | None
    if file is None:
        trust = simulation_trust(run, job, find_checkpoint(asked.checkpoint))
    else:
        trust = posterior_trust(run, job, read_coefficient_set(file))
    moved = None if figure is None else simulated_sensitivity(job, run, figure)
    return run, trust, moved


def about(job: Job, load: Load, asked: SimulationRequest) -> dict[str, object]:
    """What was simulated and with what, so that the figures can be had again."""
    facts = deployment_facts(job.deployment)
    facts["serving"] |= asdict(job.engine or EngineSpec())
    serving = job.deployment.serving
    notice = unread_notice(serving.engine, serving.engine_version)
    source = asked.coefficients or find_checkpoint(asked.checkpoint)
    return facts | {
        "recipe": job.deployment.recipe.described(),
        **({"notices": [notice]} if notice else {}),
        "workload": load.document | {"rate_per_s": asked.rate, "seed": load.seed},
        "coefficients": {"path": str(source), "sha256": file_sha256(source)},
        "simulated_by": f"pinn {pinn.__version__}",
    }


def simulation_figures(served: Served) -> dict[str, object]:
    """All figures of a run, ready for JSON: None is what does not exist."""
    run, trust, sensitivity = served
    report: dict[str, object] = finite(run_statistics(run))
    report["stages"] = [finite(run_statistics(run, i)) for i in range(run.workload.stages)]
    report["overloaded"] = overload(run)
    if trust is not None:
        report["intervals"] = trust
    if sensitivity is not None:
        report["sensitivity"] = sensitivity
    return report


def finite(value: object) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_simulation(deployment: Deployment, served: Served) -> None:
    """Print figures, intervals and sensitivities for people."""
    run, trust, sensitivity = served
    statistics, recipe, late = run_statistics(run), deployment.recipe, overload(run)
    heading = (
        f"{deployment.model.title} on {hardware_label(deployment)}, {recipe.token_budget:,} tokens "
        f"and {recipe.max_requests:,} requests a step, {run.workload.name}"
    )
    say(f"{heading}, {late}" if late else heading)
    print_report(run, statistics, (trust or {}).get("figures", {}))
    for line in simulation_lines(trust, statistics) if trust else ():
        say(line)
    if sensitivity is not None:
        print_sensitivity(sensitivity)


# What a simulated figure depends on, for ``pinn simulate --sensitivity``.

#: Smallest share that is printed, in per cent per per cent, and how many; JSON has all.
_PRINTED, _MOST = 0.001, 10


def simulated_sensitivity(job: Job, run: Run, figure: str) -> dict[str, object]:
    """Derivatives of a figure with respect to every coefficient, ready for JSON.

    Returns:
        ``figure``, its ``value`` and ``coefficients``: name -> value in SI units, ``derivative``
        (units of the figure per unit of the coefficient) and ``elasticity`` (% per %).

    Raises:
        PinnError: If no figure has this name, or it is 0 or missing in this run.
    """
    known = run_statistics(run)
    if figure not in known:
        raise PinnError(f"--sensitivity {figure}: no such figure; known are {', '.join(known)}")
    try:
        coefficients = simulate.coefficient_sensitivities(
            job, lambda run: float(run_statistics(run)[figure])
        )
    except PinnError as error:
        raise PinnError(f"--sensitivity {figure}: {error}") from error
    return {"figure": figure, "value": float(known[figure]), "coefficients": coefficients}


def print_sensitivity(found: dict[str, Any]) -> None:
    """The ten coefficients that move the figure most, where by 0.001 % per % at least."""
    table = Grid.of("coefficient", "+1 % moves it by")
    shares = {name: entry["elasticity"] for name, entry in found["coefficients"].items()}
    largest = sorted(shares, key=lambda name: -abs(shares[name]))
    for name in largest[:_MOST]:
        if abs(shares[name]) >= _PRINTED:
            table.add(name, f"{shares[name]:+.3f} %")
    page().print(f"{found['figure']} {found['value']:,.4g} depends on")
    page().print(table)


# Intervals of a simulation's figures and what left-out data showed, beside them.

#: Figure of a run -> what people call it.
_FIGURES = {"e2e": "end to end", "ttft": "first token", "itl": "between tokens", "step": "step"}

#: What is said of figures, and of which.
_TAILS = {"mean": tuple(_FIGURES), "p99": ("e2e", "ttft", "itl")}

#: Rates: they fall where times rise.
_RATES = {"responses_per_sec": "requests/s", "tokens_per_sec": "tokens/s"}


def simulation_trust(run: Run, job: Job, checkpoint: Path) -> dict[str, Any]:
    """Intervals of a run's figures and what left-out data showed, ready for JSON.

    The run is simulated twice more, with all times at either end of their intervals.

    Args:
        run: What ``job`` gave.
        job: The simulation, with the checkpoint's coefficients.
        checkpoint: The network.

    Returns:
        ``level``; ``figures``: name of a mean or 99th percentile in milliseconds, or of a rate ->
        its two ends, the upper one None where the slow end serves nothing (a percentile's times
        are off as the means are); ``slow_end_unserved``: share of requests that are not
        served to the end there; ``distance``: as ``describe_trust``. Or ``missing``, the reason
        why there are none.
    """
    if not run.requests.finished.any():
        return {"missing": "no request was served"}
    try:
        calibration = intervals.read_calibration(checkpoint)
        situation = situation_of(checkpoint, job.deployment, standing_step(run))
        outside = outside_inputs(checkpoint, job.deployment)
    except PinnError as error:
        return {"missing": str(error)}
    step, ttft = (calibration.half_width(metric, situation.gpu_known) for metric in METRICS)
    return {
        "level": calibration.level,
        **_simulated_ends(run, job, step, ttft),
        "distance": describe_trust(situation, outside, calibration),
    }


_UNSERVED = "unserved"


def _figures(run: Run) -> simulate.Figures:
    """Means, percentiles, rates, and the share of requests that were not served to the end."""
    statistics = run_statistics(run)
    times = [f"{name}_{tail}_ms" for tail, names in _TAILS.items() for name in names]
    found = {name: float(statistics[name]) for name in (*times, *_RATES)}
    return found | {_UNSERVED: 1 - float(run.requests.finished.mean())}


def posterior_trust(run: Run, job: Job, found: CoefficientSet) -> dict[str, object] | None:
    """Intervals of the means by a calibrated file's posterior; None where it has none.

    The run is simulated twice more, with all times at either end of the mean step's interval.
    """
    if found.covariance is None or not run.requests.finished.any():
        return None
    prompt = "1 prefill 2048 @ 0"
    halves = posterior_step_half_widths(found, job.deployment, [standing_step(run), prompt])
    step, ttft = (float(half) for half in halves)
    names = ", ".join(Path(source["path"]).name for source in found.calibration.get("sources", ()))
    return {
        "level": LEVEL,
        **_simulated_ends(run, job, step, ttft),
        "distance": {"sentence": f"Calibrated to {names}: intervals are those of its posterior."},
    }


def _simulated_ends(run: Run, job: Job, step: float, ttft: float) -> dict[str, object]:
    """Ends of the ``figures``, and the share of requests that the slow end does not serve."""
    fast, slow = simulate.end_figures(job, step, ttft, _figures)
    value = _figures(run)
    found: dict[str, intervals.Ends] = {n: ends(value[n], fast[n], slow[n]) for n in _RATES}
    for tail, names in _TAILS.items():
        # No gaps where outputs are one token.
        keys = {n: k for n in names if not math.isnan(value[k := f"{n}_{tail}_ms"])}
        one, quick, late = ({n: of[k] for n, k in keys.items()} for of in (value, fast, slow))
        of_tail = simulate.figure_ends(one, quick, late, ttft)
        found |= {keys[name]: pair for name, pair in of_tail.items()}
    known = {n: (low, high if math.isfinite(high) else None) for n, (low, high) in found.items()}
    return {"figures": known, "slow_end_unserved": slow[_UNSERVED]}


def simulation_lines(trust: Mapping[str, Any], statistics: Mapping[str, Any]) -> list[str]:
    """Lines on how far to trust a simulation."""
    if "missing" in trust:
        return [f"No intervals: {trust['missing']}."]
    lines = ["Intervals are simulated at the ends of the step time's."]
    if trust["slow_end_unserved"] > 1 - float(statistics["completed_requests"]) / max(
        statistics["injected_requests"], 1
    ):
        lines.append(
            f"At the slow end {100 * trust['slow_end_unserved']:.0f} % of the requests are not "
            "served in time."
        )
    return [*lines, str(trust["distance"]["sentence"])]


# Prefill and decode apart: two pools of servers.

_NO_INTERVALS = "nothing measured says how far off two pools together are"


def pool_flags(prefill: str | None, decode: str | None) -> list[tuple[int, dict[str, Any]]]:
    """(servers, flags) of the prefill and of the decode pool.

    Raises:
        PinnError: If one is missing or cannot be read.
    """
    texts = {"--prefill": prefill, "--decode": decode}
    missing = [option for option, text in texts.items() if text is None]
    if missing:
        raise PinnError(
            f"{missing[0]} is missing: prefill and decode apart take both, such as "
            "--prefill '2x tp=4' --decode '1x tp=8' (--kv-link-gb-per-s is the link between them)"
        )
    return [
        configurations.parse_pool(text, option)
        for option, text in texts.items()
        if text is not None
    ]


def refuse(given: Mapping[str, object]) -> None:
    """Refuse options that say something of one engine.

    Raises:
        PinnError: If one is given.
    """
    remedies = {
        "replicas": "write the number of servers in each pool, such as --prefill '2x tp=4'",
        "kv_transfer_bytes_per_s": "give --kv-link-gb-per-s",
        "timeline": "it draws one engine: leave it out",
        "sensitivity": "its coefficients would be of two deployments: leave it out",
    }
    for name, remedy in remedies.items():
        if given.get(name) is not None:
            raise PinnError(f"--{name.replace('_', '-')} with --prefill and --decode: {remedy}")


def serve_pools(
    jobs: Sequence[Job],
    workers: Sequence[int],
    gb_per_s: float | None,
    requests: Path | None,
    about: Sequence[Mapping[str, object]],
) -> dict[str, object]:
    """Simulate, print, and write every request; the figures ready for JSON.

    Args:
        jobs: Of the prefill and of the decode pool, on the same workload.
        workers: Servers of each.
        gb_per_s: Of the link; None for the GPUs' network adapters.
        requests: Where every request goes.
        about: What JSON says of each.
    """
    prefill, decode = (
        pools.Pool(job.deployment, job.latency, replace(job.engine or EngineSpec(), replicas=count))
        for job, count in zip(jobs, workers, strict=True)
    )
    rate = pools.default_link(prefill, decode).bytes_per_s if gb_per_s is None else gb_per_s * GIGA
    link = pools.Link(rate, decode.engine.kv_transfer_latency_s)
    served = pools.simulate_pools(prefill, decode, jobs[0].workload, link)
    run, stages = served.decode, (None, *range(served.decode.workload.stages))
    figures, *of_stages = (
        pools.pools_statistics(served, prefill, decode, stage) for stage in stages
    )
    assumptions = _assumptions(decode.deployment.serving.engine)
    heading, late = f"{decode.deployment.model.name}, {run.workload.name}", overload(run)
    say(", ".join(filter(None, (heading, "prefill and decode apart", late))))
    labels = {"prefill": prefill, "decode": decode}
    pools.print_pools(run, figures, {n: hardware_label(p.deployment) for n, p in labels.items()})
    say(f"Assumed: {'; '.join(assumptions)}.")
    say(f"No intervals: {_NO_INTERVALS}.")
    if requests is not None:
        write_requests(run, requests, served.transfers.columns())
    for pool, of_pool in zip(figures["pools"].values(), about, strict=True):
        pool["deployment"] = of_pool
    return finite(figures) | {
        "stages": finite(of_stages),
        "overloaded": late,
        "intervals": {"missing": _NO_INTERVALS},
        "assumptions": assumptions,
    }


def _assumptions(engine: str) -> list[str]:
    """What is taken for granted about two pools of an engine."""
    return [
        "a transfer follows the prefill and does not overlap it",
        "the link of each prefill worker and of each decode worker carries one transfer at a time",
        "the decode server computes the prompt's last token again and gives the first token, as "
        "with vLLM's NixlConnector"
        if engine == VLLM
        else "the first token travels beside the keys and values",
        "a prompt's blocks on the prefill server are free when its step ends",
    ]
