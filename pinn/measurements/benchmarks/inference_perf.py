"""Reader of an inference-perf lifecycle report, together with its configuration.

Older versions count two stream chunks per token, so their time per output token is about half the
true value. Mean TPOT is therefore computed from E2E and TTFT, and its percentiles are not read.
``output_len`` counts tokens of the re-tokenized text, which are up to 20 % fewer than were
generated. ``config.yaml`` in the report's folder is the tool's configuration: with ``ignore_eos``
every request generates the requested tokens. ``exp-config.yaml`` in the run's folder describes the
server.
"""

from pathlib import Path

from pinn.common.documents import read_yaml
from pinn.measurements.benchmarks import documents, marks
from pinn.measurements.benchmarks.benchmark_run import (
    STATISTICS,
    BenchmarkRun,
    Lengths,
    Load,
    SharedPrefix,
    StatedServer,
)
from pinn.measurements.benchmarks.documents import Document, NotUsable
from pinn.measurements.benchmarks.reading import Reading
from pinn.measurements.benchmarks.tree import Tree
from pinn.simulator.workloads.workload import AIOHTTP_TIMEOUT_S
from pinn.specs.flags import given_flags
from pinn.specs.serving import ServingSpec

#: Keys that identify inference-perf's reports of client-side latencies.
is_inference_perf = marks.keys("load_summary", "successes.latency")


def read_inference_perf(document: Document, reading: Reading) -> BenchmarkRun:
    """Read one load stage's run from its report and the configuration in the same folder.

    Raises:
        NotUsable: If no request was served, or the report covers several stages.
        PinnError: If data is missing from the file and the user did not supply it.
    """
    report, folder, given = document.first, document.path.parent, reading.given
    stages = folder.glob("stage_*_lifecycle_metrics.json")
    if document.path.name == "summary_lifecycle_metrics.json" and any(stages):
        raise NotUsable("the file summarizes stages, whose own reports are read instead")
    summary, successes = report.at("load_summary"), report.at("successes")
    sent, failed = summary.count("count"), report.at("failures").count("count")
    if sent <= failed:
        raise NotUsable("the run has no completed request")
    config = _yaml(folder / "config.yaml")
    shared, server = config.at("data", "shared_prefix"), config.at("server")
    output = shared.number("output_len") if server.is_true("ignore_eos") else None
    if output is not None:
        asked = "every output has the length requested in config.yaml"
        reading.assumed.append(f"{asked} (the tool's own count of output tokens is too low)")
    if output is None and given.output_tokens is None:
        # After 0.6.1, ``output_tokens`` has the server's count of output tokens.
        output = _mean(successes, "output_tokens", "output_len")
        counted = "output tokens are as counted by the tool, up to 20 % too few (--output-tokens)"
        reading.assumed.append(counted)
    repeats = "prompts repeat and share prefixes as stated in config.yaml"
    prefix = reading.prefix(_shared_prompts(shared), repeats)
    rate = summary.number("requested_rate")
    has_rate = rate is not None or given.request_rate is not None
    prompt = reading.needed("prompt_tokens", _mean(successes, "prompt_len", "prompt_tokens"))
    sides = Lengths(prompt), Lengths(reading.needed("output_tokens", output))
    concurrency = None if has_rate else summary.count("concurrency") or None
    timeout_s = config.at("load").number("request_timeout") or AIOHTTP_TIMEOUT_S
    sending = reading.sending(concurrency, rate)
    load = Load(sent, *sides, *sending, prefix=prefix, timeout_s=timeout_s)
    run = folder.parent if folder.name == "results" else folder
    stated = _stated_server(run / "exp-config.yaml", server.text("model_name"))
    figures = _report_figures(successes, load.output.mean)
    return reading.run(load, figures, sent - failed, failed, stated)


def _report_figures(successes: Tree, output_tokens: float) -> dict[str, float]:
    latency = successes.at("latency")
    first, last = latency.at("time_to_first_token"), latency.at("request_latency")
    found = {
        f"{label}_{key}_s": spread.number("median" if key == "p50" else key)
        for label, spread in (("ttft", first), ("e2e", last))
        for key in STATISTICS
    }
    ttft_s, e2e_s = first.number("mean"), last.number("mean")
    if ttft_s is not None and e2e_s is not None and output_tokens > 1:
        found["tpot_mean_s"] = (e2e_s - ttft_s) / (output_tokens - 1)
    else:
        found["tpot_mean_s"] = _mean(latency, "time_per_output_token", "inter_token_latency")
    found["requests_per_s"] = successes.at("throughput").number("requests_per_sec")
    return documents.kept(found)


def _stated_server(file: Path, served: str) -> StatedServer:
    experiment = _yaml(file)
    parallel = experiment.values.get("tensor_parallelism")
    named = {"tensor_parallel_size": parallel, **experiment.values}
    flags = given_flags(ServingSpec, named, str(file))
    source = file.name if flags else ""
    return StatedServer(experiment.text("model") or served, flags=flags, source=source)


def _shared_prompts(shared: Tree) -> SharedPrefix | None:
    groups, each = shared.count("num_groups"), shared.count("num_prompts_per_group")
    tokens = shared.count("system_prompt_len")
    return SharedPrefix(groups, each, tokens) if groups and each else None


def _mean(values: Tree, *names: str) -> float | None:
    """Return the mean of the first given quantity that a report contains; None without one."""
    return next((values.at(name).number("mean") for name in names if values.at(name)), None)


def _yaml(path: Path) -> Tree:
    return Tree(read_yaml(path) if path.is_file() else None)
