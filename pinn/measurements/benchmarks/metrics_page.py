"""Reader of Prometheus metrics pages of vLLM and SGLang, including accepted draft tokens."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pinn.common.documents import MOST_CSV_BYTES, read_text
from pinn.errors import PinnError
from pinn.measurements.benchmarks import marks
from pinn.measurements.benchmarks.benchmark_run import (
    BenchmarkRun,
    Load,
    SharedPrefix,
    StatedServer,
)
from pinn.measurements.benchmarks.documents import NotUsable, kept
from pinn.measurements.benchmarks.reading import Reading
from pinn.specs.flags import FlagValue

# Metrics pages of vLLM and SGLang: differences between two scrapes.
#
# Sums and counts of histograms are subtracted. TTFT is measured from a request's arrival at the
# front end, ITL between outputs of the engine. The name of ITL is ``time_per_output_token_seconds``
# in vLLM up to 0.11, and ``inter_token_latency_seconds`` from 0.10.2 on. TPOT is
# ``request_time_per_output_token_seconds`` (from 0.11 on). ``cache_config_info`` states the size of
# the KV cache. The page does not state GPU, parallelism or load.

_SERIES = re.compile(r"^(vllm|sglang):(\w+)(?:\{(.*)\})?\s+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_STARTED = re.compile(r"^process_start_time_seconds(?:\{.*\})?\s+(\S+)", re.MULTILINE)

#: Histograms for computing the mean of a metric, by metric, most precise first.
_HISTOGRAMS = {
    "ttft_mean_s": ("time_to_first_token_seconds",),
    "tpot_mean_s": ("request_time_per_output_token_seconds",),
    "itl_mean_s": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "e2e_mean_s": ("e2e_request_latency_seconds",),
}

#: Minimum prefix cache hit rate, as a share of prompt tokens, from which prompts are assumed to
#: share a prefix. Lower rates may result from chat templates alone.
_HITS = 0.05


@dataclass
class Page:
    """One scrape of a metrics page.

    Attributes:
        engine: ``vllm`` or ``sglang``.
        sums: Sum of each series over all its labels, except histogram buckets.
        labelled: Sum of each series over all other labels, by (series, transfer type).
        models: Names of the served models.
        info: Labels of ``cache_config_info``.
        engines: Indices of the data-parallel engines on the page.
        started_s: Start time of the server in epoch seconds; None if unknown.
    """

    engine: str = ""
    sums: dict[str, float] = field(default_factory=dict)
    labelled: dict[tuple[str, str], float] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    info: dict[str, str] = field(default_factory=dict)
    engines: set[str] = field(default_factory=set)
    started_s: float | None = None


#: Pattern that identifies a metrics page of vLLM or SGLang.
is_metrics_page = marks.pattern("series named vllm: or sglang:", _SERIES)


def read_page(text: str) -> Page:
    """Parse one scrape of a metrics page."""
    page = Page()
    for engine, series, labels, value in _SERIES.findall(text):
        named = dict(_LABEL.findall(labels))
        page.engine = engine
        for label, seen in (("model_name", page.models), ("engine", page.engines)):
            if label in named:
                seen.add(named[label])
        if series == "cache_config_info":
            page.info = named
        elif not series.endswith(("_bucket", "_created")):
            page.sums[series] = page.sums.get(series, 0.0) + float(value)
            if kind := named.get("transfer_type"):
                known = page.labelled.get((series, kind), 0.0)
                page.labelled[series, kind] = known + float(value)
    started = _STARTED.search(text)
    page.started_s = float(started[1]) if started else None
    return page


def read_metrics_pages(pages: Sequence[str], reading: Reading) -> BenchmarkRun:
    """Read a run from the increase of counters between two scrapes, or since the server's start.

    Args:
        pages: Text of each page, the earlier page first.
        reading: Reading of the run with the user's load, which the pages do not contain.

    Raises:
        NotUsable: If the pages are from different servers, or no request was served between them.
        PinnError: If data is missing from the file and the user did not supply it.
    """
    *earlier, after = map(read_page, pages)
    before = earlier[0] if earlier else _at_start(after, reading)
    models = before.models | after.models
    if len(models) > 1:
        names = ", ".join(sorted(models))
        raise NotUsable(f"the scrapes have {len(models)} models, expected one: {names}")
    if before.started_s != after.started_s:
        raise NotUsable(
            "the server was restarted between the scrapes: give scrapes of one server process"
        )
    delta = {k: v - before.sums.get(k, 0.0) for k, v in after.sums.items()}
    counts = {k: v for k, v in delta.items() if k.endswith(("_count", "_sum", "_total"))}
    if min(counts.values(), default=0.0) < 0:
        raise NotUsable(
            "a counter decreases, because the server was restarted or the scrapes are swapped: "
            "give two scrapes of one server process, the earlier one first"
        )
    served = int(counts.get("e2e_request_latency_seconds_count", 0.0))
    served = served or int(counts.get("time_to_first_token_seconds_count", 0.0))
    if not served:
        when = "between the scrapes" if earlier else "since the server's start"
        raise NotUsable(f"the server completed no request {when}")
    given = reading.given
    reading.assumed.append(
        "latencies are measured from the arrival of a request at the server's front end"
    )
    prompt = _mean(counts, ("request_prompt_tokens",), "prompt_tokens_total", served)
    output = _mean(counts, ("request_generation_tokens",), "generation_tokens_total", served)
    prompt = reading.needed("prompt_tokens", prompt)
    output = reading.needed("output_tokens", output)
    rate = given.request_rate or (served / given.duration if given.duration else None)
    if rate is None:
        reading.needed("concurrency")
    sides = reading.lengths(prompt), reading.lengths(output)
    sending = given.concurrency, rate if given.concurrency is None else given.request_rate
    prefix = reading.prefix(*_prefix(counts, served, prompt))
    load = Load(given.num_prompts or served, *sides, *sending, prefix=prefix)
    figures = {figure: _mean(counts, names, "", served) for figure, names in _HISTOGRAMS.items()}
    if given.duration:
        figures["requests_per_s"] = served / given.duration
        figures["output_tokens_per_s"] = served * output / given.duration
    reading.tool = f"{reading.tool} of {after.engine}"
    return reading.run(load, kept(figures), served, server=_server(after))


def _at_start(page: Page, reading: Reading) -> Page:
    """Return a copy of a page with all counters at 0, as before the server's first request.

    Raises:
        NotUsable: If neither the duration nor the load is given.
    """
    given = reading.given
    if given.duration is None and given.concurrency is None and given.request_rate is None:
        raise NotUsable(
            "only one scrape of the /metrics page was given: give an earlier scrape, too. If the "
            "server has served only this load, give the load's --duration instead"
        )
    reading.assumed.append("all requests since the server's start belong to this load")
    return Page(started_s=page.started_s)


def _mean(
    counts: dict[str, float], histograms: tuple[str, ...], total: str, served: int
) -> float | None:
    """Return the mean of the first histogram with counts, or else ``total`` / ``served``."""
    for name in histograms:
        count = counts.get(f"{name}_count", 0.0)
        if count > 0:
            return counts.get(f"{name}_sum", 0.0) / count
    return counts[total] / served if counts.get(total) else None


def _prefix(
    counts: dict[str, float], served: int, prompt: float
) -> tuple[SharedPrefix | None, str]:
    """Return the shared prefix that explains the prefix cache hits, and the underlying assumption.

    Args:
        counts: Counters of the page.
        served: Number of served requests.
        prompt: Mean prompt length, in tokens.
    """
    queries = counts.get("prefix_cache_queries_total", 0.0)
    hits = counts.get("prefix_cache_hits_total", 0.0) / queries if queries else 0.0
    if hits < _HITS:
        return None, ""
    shared = f"the {hits:.0%} of prompt tokens that hit the prefix cache are a prefix"
    return SharedPrefix(1, served, round(hits * prompt)), f"{shared} that all prompts share"


def _server(page: Page) -> StatedServer:
    info, flags = page.info, dict[str, FlagValue]()
    if "gpu_memory_utilization" in info:
        flags["gpu_memory_utilization"] = float(info["gpu_memory_utilization"])
    size = int(info["block_size"]) if info.get("block_size", "").isdigit() else 0
    if size:
        flags["block_size"] = size
    if "enable_prefix_caching" in info:
        flags["enable_prefix_caching"] = info["enable_prefix_caching"] == "True"
    if info.get("cache_dtype", "").startswith("fp8"):
        flags["kv_cache_dtype"] = "fp8"
    blocks = info.get("num_gpu_blocks", "")
    tokens = page.sums.get("max_total_num_tokens") or page.sums.get("kv_cache_size_tokens")
    if blocks.isdigit() and size:
        tokens = int(blocks) * size
    if len(page.engines) > 1:
        flags["data_parallel_size"] = len(page.engines)
    model = next(iter(page.models), "")
    return StatedServer(model, "", flags, int(tokens) if tokens else None, page.engine)


# Measured acceptance rates of draft tokens, from counters of vLLM's metrics page.
#
# The counters are ``spec_decode_num_drafts``, ``spec_decode_num_accepted_tokens_per_pos`` and, for
# a page without positions, ``spec_decode_num_draft_tokens`` and ``spec_decode_num_accepted_tokens``
# (vLLM 0.15.1 ``vllm/v1/spec_decode/metrics.py``). They count from the start of the server.


def measured_acceptance(text: str, where: str) -> tuple[float, ...]:
    """Return each draft position's acceptance rate, given that all earlier drafts are accepted.

    Counts are summed over all engines. Without counts by position, the result is one rate.

    Args:
        text: Text of a metrics page.
        where: Name of the page in error messages.

    Raises:
        PinnError: If the page counts no draft tokens.
    """
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for _, series, labels, value in _SERIES.findall(text):
        _, is_of_drafts, name = series.removesuffix("_total").partition("spec_decode_num_")
        if not is_of_drafts:
            continue
        position = dict(_LABEL.findall(labels)).get("position")
        if name == "accepted_tokens_per_pos" and position:
            positions[int(position)] = positions.get(int(position), 0.0) + float(value)
        else:
            sums[name] = sums.get(name, 0.0) + float(value)
    drafts, drafted = sums.get("drafts", 0.0), sums.get("draft_tokens", 0.0)
    if not drafted and not drafts:
        raise PinnError(
            f"{where} has no vllm:spec_decode counter above 0: give a /metrics page "
            "of a server with speculative decoding, or --speculative-acceptance "
            "as a number"
        )
    if not positions or not drafts:
        return (_share(sums.get("accepted_tokens", 0.0), drafted),)
    counts = [drafts, *(positions[at] for at in sorted(positions))]
    return tuple(_share(after, before) for before, after in pairwise(counts))


def acceptance_text(path: Path) -> str:
    """Return the value for ``--speculative-acceptance`` from a file with a metrics page.

    Raises:
        PinnError: If the file cannot be read or counts no draft tokens.
    """
    text = read_text(path, MOST_CSV_BYTES, "text")
    return ",".join(f"{rate:.4f}" for rate in measured_acceptance(text, str(path)))


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole else 0.0
