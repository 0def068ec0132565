"""Checks of benchmark files against the flags, and of their metrics against each other."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from pinn.calibration.checks import (
    CoefficientsOf,
    check_kv_blocks,
    check_speed,
    other_model,
    unknown_model,
)
from pinn.common.run_names import short_names
from pinn.engines.deployment import Deployment
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun, StatedServer
from pinn.measurements.benchmarks.loads import benchmark_figures, benchmark_workload
from pinn.measurements.benchmarks.run_table import metric_name
from pinn.memory.kv_layout import max_model_len
from pinn.physics.batch_sums import uniform_sums
from pinn.physics.costs import step_costs
from pinn.physics.step_values import floor_seconds
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import measured_job
from pinn.specs.gpu import find_gpu
from pinn.specs.serving import VLLM, ServingSpec

#: Relative tolerances of the checks whether the metrics of one file agree: output tokens per
#: request, latencies, and requests in flight, in this order. Clients round, drop the end of a run
#: and average latencies differently.
_TOKENS, _LATENCY, _IN_FLIGHT = 0.2, 0.25, 0.15

#: Minimum mean number of requests in flight in a closed loop, as a share of its concurrency. Below
#: this share, something else limits the load.
_IDLE = 0.5

#: Plausible range of each latency in seconds. A value outside its range probably has another unit.
_PLAUSIBLE_S = {"ttft": (3e-4, 3600.0), "tpot": (1e-4, 5.0), "itl": (1e-5, 5.0),
                "e2e": (1e-3, 36000.0)}  # fmt: skip

Runs = Sequence[BenchmarkRun]

#: Maximum number of runs to simulate when checking whether the server's speed matches the flags.
_SIMULATED = 3


def check_benchmarks(
    runs: Runs, deployment: Deployment, coefficients_of: CoefficientsOf
) -> list[str]:
    """Return findings, as sentences, on mismatches between benchmark runs and deployment.

    Args:
        runs: Benchmark runs of one server.
        deployment: Deployment as the user specified it.
        coefficients_of: Function of a deployment or its variant that returns its coefficients
            before calibration.
    """
    found = stated_mismatches(runs, deployment)
    short = short_names([run.name for run in runs])
    for run in runs:
        found += [f"{short[run.name]}: {each}" for each in _of_run(run, deployment)]
    if found:
        return found
    timed = _timed(runs)
    metrics = " or ".join(dict.fromkeys(metric_name(figure) for _, figure in timed))
    what = f"the {metrics} of {', '.join(short[run.name] for run, _ in timed)} is"
    return list(check_speed(_ratio(timed, coefficients_of), deployment, what))


def stated_mismatches(runs: Runs, deployment: Deployment) -> list[str]:
    """Return findings on files that state different servers, or another one than the flags."""
    return [*_one_server(runs), *_stated(runs, deployment)]


def benchmark_warnings(runs: Runs, deployment: Deployment) -> list[str]:
    """Return warnings about unknown models, unstated engines, and chunks of several tokens."""
    short = short_names([run.name for run in runs])
    return unknown_servers(runs, deployment) + [
        f"{short[r.name]}: {r.chunk_warning}" for r in runs if r.chunk_warning
    ]


def _one_server(runs: Runs) -> Iterator[str]:
    models, gpus = ({getattr(r.server, name) for r in runs} - {""} for name in ("model", "gpu"))
    sides, flags = {"models": models, "GPUs": gpus}, [r.server.all_flags for r in runs]
    for name in sorted(set().union(*flags)):
        option = f"values of --{name.replace('_', '-')}"
        sides[option] = {str(each[name]) for each in flags if name in each}
    for what, values in sides.items():
        if len(values) > 1:
            yield (
                f"the files have {len(values)} {what} ({', '.join(sorted(values))}): calibrate "
                "each server separately"
            )
    sizes = {r.server.kv_tokens for r in runs if r.server.kv_tokens}
    if sizes and max(sizes) > 1.02 * min(sizes):
        yield (
            f"the files are from servers with KV caches of {min(sizes):,} and {max(sizes):,} "
            f"tokens: "
            "calibrate each server separately"
        )
    seen: dict[tuple[object, ...], str] = {}
    for run in runs:
        key = (run.load, *sorted(run.figures.items()))
        if key in seen:
            yield f"{run.name} is the same run as {seen[key]}: omit one of the two"
        seen[key] = run.name


def unknown_servers(runs: Runs, deployment: Deployment) -> list[str]:
    """Return warnings about models that are unknown, and about engines that a file omits."""
    names = dict.fromkeys(run.server.model for run in runs)
    found = [text for name in names if (text := unknown_model(name, deployment))]
    return [*found, *_unstated_engine(runs)]


def _unstated_engine(runs: Runs) -> Iterator[str]:
    """Yield a warning if only some files state an engine, which is then assumed for all."""
    short = short_names([run.name for run in runs])
    stated = {short[r.name]: engine for r in runs if (engine := r.server.all_flags.get("engine"))}
    others = [name for name in short.values() if name not in stated]
    if stated and others:
        file, engine = next(iter(stated.items()))
        yield (
            f"{', '.join(others)} {'does' if len(others) == 1 else 'do'} not state the engine: "
            f"assumed to be {engine}, which {file} states"
        )


def _stated(runs: Runs, deployment: Deployment) -> list[str]:
    """Return findings about settings that differ between the files and the user's flags.

    Each finding is listed once, even if several files have it.
    """
    found: dict[str, str] = {}
    for run in runs:
        server = run.server
        for other in other_model(server.model, deployment):
            found[server.model] = other
        gpu = find_gpu(server.gpu) if server.gpu else None
        if gpu and gpu.name != deployment.gpu.name:
            found[gpu.name] = (
                f"the file names the GPU {gpu.name}, but --gpu is {deployment.gpu.name}: did you "
                f"mean --gpu {gpu.name}?"
            )
        found |= _stated_flags(server, deployment.serving)
    tokens = next((r.server.kv_tokens for r in runs if r.server.kv_tokens), None)
    told = deployment.serving.engine == VLLM and not deployment.model.window_tokens
    if not (tokens and told):
        return list(found.values())
    blocks = round(tokens / deployment.recipe.block_tokens)
    return [*found.values(), *check_kv_blocks(blocks, deployment)]


def _stated_flags(server: StatedServer, serving: ServingSpec) -> dict[str, str]:
    """Return a finding for each flag that differs between the file and the user.

    If the engines differ, the only finding is about the engine.
    """
    stated = server.all_flags
    if stated.get("engine", serving.engine) != serving.engine:
        stated = {"engine": stated["engine"]}
    found = {}
    for name, value in stated.items():
        given = getattr(serving, name, value)
        if given != value:
            option = f"--{name.replace('_', '-')} {value}"
            file = server.source or "the file"
            text = f"{file} states {option}, but the flag is {given}"
            found[name] = f"{text}: did you mean {option}?"
    return found


def _of_run(run: BenchmarkRun, deployment: Deployment) -> list[str]:
    """Return findings about a run's metrics that contradict each other or the deployment."""
    found = [*_served_otherwise(run), *_units(run)]
    if not found:
        found = [*_consistent(run), *_in_flight(run), *_floor(run, deployment)]
        found += _too_long(run, deployment)
    return found


def _served_otherwise(run: BenchmarkRun) -> Iterator[str]:
    if run.server.speculative:
        yield (
            "the server used speculative decoding, which cannot be calibrated: benchmark the "
            "server without it"
        )


def _units(run: BenchmarkRun) -> Iterator[str]:
    """Yield a finding if a latency of a run has the wrong unit or decreasing percentiles."""
    for name, value in run.figures.items():
        latency, statistic = name.split("_")[:2]
        if latency not in _PLAUSIBLE_S:
            continue
        low, high = _PLAUSIBLE_S[latency]
        # Check only mean ITLs, because two streamed chunks of an output may arrive within
        # microseconds of each other.
        if not low <= value <= high and (latency != "itl" or statistic == "mean"):
            yield f"{name} is {value:.3g} s, expected {low:g} to {high:g} s: check its unit"
            return
    for latency in _PLAUSIBLE_S:
        names = [f"{latency}_{p}_s" for p in ("p50", "p90", "p95", "p99")]
        known = [run.figures[name] for name in names if name in run.figures]
        if any(b < a * (1 - 1e-9) for a, b in pairwise(known)):
            yield (
                f"the percentiles of {latency.upper()} are not in increasing order, so the file "
                f"is damaged or was edited: give the client's original file"
            )
            return


def _consistent(run: BenchmarkRun) -> Iterator[str]:
    """Yield a finding for the first pair of metrics of a run that contradict each other."""
    figures, output = run.figures, run.load.output.mean
    expected, e2e = _e2e_s(run), figures.get("e2e_mean_s")
    requests, tokens = figures.get("requests_per_s"), figures.get("output_tokens_per_s")
    rate = run.load.rate_per_s
    if e2e and expected and abs(e2e / expected - 1) > _LATENCY:
        yield (
            f"mean E2E latency is {e2e:.3g} s, but TTFT plus {output:.0f} tokens at mean TPOT "
            f"gives "
            f"{expected:.3g} s: check --output-tokens, and whether streamed chunks contain "
            f"several tokens"
        )
    elif requests and tokens and abs(tokens / requests / output - 1) > _TOKENS:
        yield (
            f"the throughputs imply {tokens / requests:.0f} output tokens per request, but the "
            f"lengths imply {output:.0f}: check --output-tokens, and that the client ignored EOS"
        )
    elif requests and rate and requests > rate * (1 + _IN_FLIGHT):
        yield (
            f"{requests:.3g} requests/s were served, but the request rate is {rate:g}: did you "
            f"mean --request-rate {requests:.3g}?"
        )


def _e2e_s(run: BenchmarkRun) -> float | None:
    figures = run.figures
    gap = figures.get("tpot_mean_s", figures.get("itl_mean_s"))
    if gap is None or "ttft_mean_s" not in figures:
        return None
    return figures["ttft_mean_s"] + gap * (run.load.output.mean - 1)


def _in_flight(run: BenchmarkRun) -> Iterator[str]:
    """Yield a finding if throughput x latency contradicts the number of requests in flight."""
    figures, load = run.figures, run.load
    e2e = figures.get("e2e_mean_s") or _e2e_s(run)
    rate = figures.get("requests_per_s")
    rate = rate or figures.get("output_tokens_per_s", 0.0) / load.output.mean
    if not (e2e and rate and load.concurrency):
        return
    found = rate * e2e
    enough = load.requests >= 4 * load.concurrency and load.rate_per_s is None
    too_few = enough and not load.offsets_s and found < _IDLE * load.concurrency
    if found > (1 + _IN_FLIGHT) * load.concurrency + 1 or too_few:
        yield (
            f"throughput x latency gives {found:.3g} requests in flight, but concurrency is "
            f"{load.concurrency}: did you mean --concurrency {max(round(found), 1)}?"
        )


def _floor(run: BenchmarkRun, deployment: Deployment) -> Iterator[str]:
    """Yield a finding if a measured TPOT, ITL or TTFT is below the roofline lower bound."""
    costs, window, one = step_costs([deployment]), deployment.model.window_tokens, np.ones(1)
    decodes = uniform_sums(decode_requests=one, decode_context=one, window=window)
    decode = float(floor_seconds(costs, decodes)[0])
    prompt = run.load.prompt.mean
    prefill = uniform_sums(prefill_requests=one, prefill_tokens=prompt * one, window=window)
    first = float(floor_seconds(costs, prefill)[0])
    gap, ttft = run.typical_s("tpot", "itl"), run.typical_s("ttft")
    if gap is not None and gap < decode:
        yield (
            f"the time per output token is {gap * 1e3:.3g} ms, but reading the weights of "
            f"{deployment.model.name} alone takes {decode * 1e3:.3g} ms at --tensor-parallel-size "
            f"{deployment.serving.tensor_parallel_size}: check --tensor-parallel-size, "
            "--quantization and --gpu, and that speculative decoding is off"
        )
    elif ttft is not None and run.load.prefix is None and ttft < first:
        yield (
            f"TTFT is {ttft * 1e3:.3g} ms, but computing {prompt:.0f} prompt tokens takes at "
            f"least {first * 1e3:.3g} ms: check --gpu, --tensor-parallel-size, and whether "
            f"prompts repeat (--prompt-groups)"
        )


def _too_long(run: BenchmarkRun, deployment: Deployment) -> Iterator[str]:
    longest = max_model_len(deployment)
    length = run.load.prompt.mean + run.load.output.mean
    if length > longest:
        yield (
            f"requests have {length:.0f} tokens, but the server accepts at most {longest}: check "
            "--model and --max-model-len"
        )


def _timed(runs: Runs) -> list[tuple[BenchmarkRun, str]]:
    """Return the shortest runs with a latency, each with the latency that shows its speed."""
    names = ("tpot_mean_s", "itl_mean_s", "e2e_mean_s", "tpot_p50_s", "itl_p50_s")
    known = [(r, n) for r in runs if (n := next((n for n in names if n in r.figures), ""))]
    return sorted(known, key=lambda pair: pair[0].load.requests)[:_SIMULATED]


def _ratio(
    timed: Sequence[tuple[BenchmarkRun, str]], coefficients_of: CoefficientsOf
) -> Callable[[Deployment], float]:
    """Return a function that computes the median ratio of measured to simulated latencies.

    Its argument is a deployment, such as a variant with one flag changed.
    """

    def ratio(deployment: Deployment) -> float:
        found = coefficients_of(deployment)
        latency = LinearLatency(deployment, found.beta[0], found.alpha[0])
        ratios = []
        for run, name in timed:
            simulated = measured_job(deployment, benchmark_workload(run), latency).run()
            ratios.append(run.figures[name] / benchmark_figures(simulated, [name])[name])
        return float(np.median(ratios)) if ratios else float("nan")

    return ratio
