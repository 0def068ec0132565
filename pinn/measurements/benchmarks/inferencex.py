"""Reports of InferenceX and of llm-d-benchmark."""

import math
from collections.abc import Mapping
from typing import Any

from pinn.measurements.benchmarks import documents
from pinn.measurements.benchmarks.benchmark_run import (
    BenchmarkRun,
    Lengths,
    Load,
    Reading,
    StatedServer,
)
from pinn.measurements.benchmarks.documents import Document, NotUsable, at
from pinn.specs.flags import flags_of, given_flags
from pinn.specs.serving import SGLANG, TRTLLM, ServingSpec

# InferenceX (InferenceMAX) ``agg_<name>.json``: one object a run, or a list of them.
#
# Latencies are in seconds, without a suffix. Its CI draws lengths uniform in [0.8, 1] x the
# nominal ones and drops the totals; it sends ten prompts per unit of concurrency, prefix cache
# off.

#: Lengths are drawn uniformly from this share of the nominal ones (the benchmark's range ratio).
LENGTH_RANGE = (0.8, 1.0)
#: Prompts of one benchmark run per unit of concurrency.
PROMPTS_PER_CONCURRENCY = 10
LABEL_SCHEMES = {"fp4": "nvfp4", "fp8": "fp8", "int4": "int4", "bf16": "bf16"}

_NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
_ASSUMED = (
    f"{PROMPTS_PER_CONCURRENCY} prompts per unit of concurrency, lengths uniform between "
    f"{LENGTH_RANGE[0]:g} and {LENGTH_RANGE[1]:g} x isl and osl, prefix cache off: as its CI runs"
)


#: Whether InferenceX wrote a document.
is_inferencex = documents.has("hw", "conc", "isl", "osl", "mean_ttft")


def read_inferencex(values: Any, reading: Reading) -> BenchmarkRun:
    """One run.

    Raises:
        NotUsable: If prefill and decode ran apart, or attention data-parallel over some GPUs.
    """
    if str(values.get("disagg")).lower() == "true":
        raise NotUsable("prefill and decode on servers of their own")
    image = str(values.get("image") or "").rpartition(":")[2]
    spelled = f"{values.get('framework') or ''} {image}".strip()
    engine = StatedServer(engine=spelled).all_flags.get("engine")
    apart = str(values.get("dp_attention")).lower() == "true"
    if apart and engine != TRTLLM:
        raise NotUsable("data-parallel attention over a number of GPUs that it does not state")
    gpus, concurrency = int(values.get("tp", 1)), int(values["conc"])
    figures = documents.client_statistics(values, _NAMES, 1.0)
    figures |= documents.throughputs(None, gpus * (values.get("output_tput_per_gpu") or 0.0))
    requests = reading.given.num_prompts or PROMPTS_PER_CONCURRENCY * concurrency
    lengths = _lengths(int(values["isl"])), _lengths(int(values["osl"]))
    load = Load(requests, *lengths, reading.or_stated("concurrency", concurrency))
    flags: dict[str, Any] = {"tensor_parallel_size": gpus, "enable_prefix_caching": False}
    flags |= {"enable_dp_attention": True} if apart else {}
    experts = int(values.get("ep") or 1)
    if experts > 1:
        others = engine in (SGLANG, TRTLLM)
        flags |= {"ep_size": experts} if others else {"enable_expert_parallel": True}
    label = str(values.get("precision")).lower()
    if label in LABEL_SCHEMES:
        flags["precision"] = LABEL_SCHEMES[label]
    drafts = str(values.get("spec_decoding") or "none").lower()
    model, gpu = str(values["model"]), values["hw"].split("-")[0]
    drafted = drafts not in ("none", "false")
    server = StatedServer(model, gpu, flags, engine=spelled, speculative=drafted)
    reading.assumed.append(_ASSUMED)
    return reading.run(load, figures, requests, server=server)


def _lengths(nominal: int) -> Lengths:
    low, high = (share * nominal for share in LENGTH_RANGE)
    return Lengths((low + high) / 2, low, high)


# Reports of llm-d-benchmark, versions 0.1, 0.2 and 0.2.1: YAML or JSON.
#
# Units stand beside each figure and differ by the tool that measured. A report made of
# guidellm's file passes its odd time per output token on, so there the inter-token latency is
# read as TPOT.


def is_llm_d(document: Document) -> bool:
    """Whether llm-d-benchmark wrote it."""
    first = document.first
    return "scenario" in first and ("results" in first or "metrics" in first)


def read_llm_d(values: Any, reading: Reading) -> BenchmarkRun:
    """One report.

    Raises:
        NotUsable: If several servers stand behind it, or nothing was served.
        PinnError: If the user has to say more.
    """
    old = "metrics" in values
    new = at(values, "results", "request_performance", "aggregate")
    aggregate = values["metrics"] if old else new
    latency, requests = at(aggregate, "latency"), at(aggregate, "requests")
    failed = int(requests.get("failures") or 0)
    total = int(reading.needed("num_prompts", requests.get("total") or None))
    if total <= failed:
        raise NotUsable("no request was served")
    server = _old_server(values["scenario"]) if old else _server(values["scenario"])
    stated = at(values, "scenario", "load")
    asked = {} if old else at(stated, "standardized")
    tool = str(asked.get("tool") or stated.get("name") or "")
    figures = documents.streamed(_figures(latency, tool) | _throughput(at(aggregate, "throughput")))
    sides = at(requests, "input_length"), at(requests, "output_length")
    lengths = reading.stated_lengths(*sides, std="")
    sending = reading.sending(*_sending(asked, stated))
    load = Load(total, *lengths, *sending, prefix=reading.prefix())
    if tool:
        reading.tool = f"{reading.tool} ({tool})"
    return reading.run(load, figures, total - failed, failed, server)


def _figures(latency: Mapping[str, Any], tool: str) -> dict[str, float]:
    tpot = "inter_token_latency" if "guidellm" in tool else "time_per_output_token"
    places = {"ttft": "time_to_first_token", "tpot": tpot, "e2e": "request_latency"}
    figures: dict[str, float] = {}
    for name, place in places.items():
        found = at(latency, place)
        unit_s = documents.unit_seconds(place, found.get("units", "s"))
        figures |= documents.statistics_of(name, found.get, unit_s)
    return figures


def _throughput(rates: Mapping[str, Any]) -> dict[str, float]:
    requests = rates.get("request_rate", rates.get("requests_per_sec"))
    tokens = rates.get("output_token_rate", rates.get("output_tokens_per_sec"))
    both = (each.get("mean") if isinstance(each, Mapping) else each for each in (requests, tokens))
    return documents.throughputs(*both)


def _sending(asked: Mapping[str, Any], load: Mapping[str, Any]) -> tuple[int | None, float | None]:
    """Concurrency and rate; infinity and nothing are the same."""
    args = at(load, "args")
    limit = _number(asked.get("concurrency", args.get("max_concurrency")))
    rate = _number(asked.get("rate_qps", args.get("request_rate")))
    return None if limit is None else int(limit), rate


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and math.isfinite(value) and value > 0
    return float(value) if usable else None


def _server(scenario: Mapping[str, Any]) -> StatedServer:
    stack = [(at(part, "standardized"), part) for part in scenario.get("stack") or []]
    engines = [pair for pair in stack if pair[0].get("kind") == "inference_engine"]
    if not engines:
        return StatedServer()
    if len(engines) > 1:
        raise NotUsable(f"{len(engines)} engines behind one router")
    ((facts, engine),) = engines
    replicas = int(facts.get("replicas") or 1)
    if replicas > 1:
        raise NotUsable(f"{replicas} replicas behind one router")
    card = at(facts, "accelerator")
    model, gpu = str(at(facts, "model").get("name") or ""), str(card.get("model") or "")
    flags = _parallelism(at(card, "parallelism")) | _flags(at(engine, "native", "args"))
    spelled = " ".join(str(facts[k]) for k in ("tool", "tool_version") if facts.get(k))
    return StatedServer(model, gpu, flags, engine=spelled)


def _old_server(scenario: Mapping[str, Any]) -> StatedServer:
    hosts = at(scenario, "host").get("accelerator") or [{}]
    engines = at(scenario, "platform").get("engine") or [{}]
    if len(hosts) > 1 or len(engines) > 1:
        raise NotUsable(f"{max(len(hosts), len(engines))} engines behind one router")
    flags = _parallelism(at(hosts[0], "parallelism")) | _flags(at(engines[0], "args"))
    engine = " ".join(str(engines[0][k]) for k in ("name", "version") if engines[0].get(k))
    model, gpu = str(at(scenario, "model").get("name") or ""), str(hosts[0].get("model") or "")
    return StatedServer(model, gpu, flags, engine=engine)


def _parallelism(sizes: Mapping[str, Any]) -> dict[str, Any]:
    names = {"tp": "tensor", "pp": "pipeline", "dp": "data"}
    stated = [(name, int(sizes[key])) for key, name in names.items() if sizes.get(key)]
    found: dict[str, Any] = {f"{name}_parallel_size": size for name, size in stated}
    return found | ({"enable_expert_parallel": True} if int(sizes.get("ep") or 1) > 1 else {})


def _flags(args: Mapping[str, Any]) -> dict[str, Any]:
    """Options of any engine's command line; a switch has no value there."""
    found = dict(args)
    for each in flags_of(ServingSpec):
        straight, off = [each.option, *each.shorts], [f"--no-{each.option[2:]}"]
        for name in each.other_names:
            (off if name in each.reversed_names else straight).append(f"--{name.replace('_', '-')}")
        for spelled in straight:
            if spelled in found:
                found[each.name] = True if found[spelled] is None else found[spelled]
        if any(option in found for option in off):
            found[each.name] = False
    return given_flags(ServingSpec, found, "scenario")
