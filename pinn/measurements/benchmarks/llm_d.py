"""Reader of llm-d-benchmark's reports, versions 0.1, 0.2 and 0.2.1, in YAML or JSON.

Each metric states its unit, which depends on the measuring tool. Reports from guidellm use its
unusual definition of time per output token, so their inter-token latency is read as TPOT.
"""

import math

from pinn.measurements.benchmarks import documents, marks
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun, Load, StatedServer
from pinn.measurements.benchmarks.documents import NotUsable
from pinn.measurements.benchmarks.reading import Reading
from pinn.measurements.benchmarks.tree import Tree
from pinn.specs.flags import FlagValue, flags_of, given_flags
from pinn.specs.serving import ServingSpec

#: Keys that identify llm-d-benchmark's reports.
is_llm_d = marks.any_of(marks.keys("scenario", "results"), marks.keys("scenario", "metrics"))


def read_llm_d(values: Tree, reading: Reading) -> BenchmarkRun:
    """Read one run from a report of llm-d-benchmark.

    Raises:
        NotUsable: If several servers were measured, or no request was served.
        PinnError: If data is missing from the file and the user did not supply it.
    """
    old = "metrics" in values
    scenario = values.at("scenario")
    new = values.at("results", "request_performance", "aggregate")
    aggregate = values.at("metrics") if old else new
    requests = aggregate.at("requests")
    failed = requests.count("failures")
    total = int(reading.needed("num_prompts", requests.number("total") or None))
    if total <= failed:
        raise NotUsable("the run has no completed request")
    server = _old_server(scenario) if old else _server(scenario)
    stated = scenario.at("load")
    asked = Tree() if old else stated.at("standardized")
    tool = asked.text("tool") or stated.text("name")
    figures = _figures(aggregate.at("latency"), tool) | _throughput(aggregate.at("throughput"))
    figures = documents.streamed(figures)
    sides = requests.at("input_length"), requests.at("output_length")
    lengths = reading.stated_lengths(*sides, std="")
    sending = reading.sending(*_sending(asked, stated))
    load = Load(total, *lengths, *sending, prefix=reading.prefix())
    if tool:
        reading.tool = f"{reading.tool} ({tool})"
    return reading.run(load, figures, total - failed, failed, server)


def _figures(latency: Tree, tool: str) -> dict[str, float]:
    tpot = "inter_token_latency" if "guidellm" in tool else "time_per_output_token"
    places = {"ttft": "time_to_first_token", "tpot": tpot, "e2e": "request_latency"}
    figures: dict[str, float] = {}
    for name, place in places.items():
        found = latency.at(place)
        unit_s = documents.unit_seconds(place, found.text("units") or "s")
        figures |= documents.statistics_of(name, found.number, unit_s)
    return figures


def _throughput(rates: Tree) -> dict[str, float]:
    pairs = ("request_rate", "requests_per_sec"), ("output_token_rate", "output_tokens_per_sec")
    names = [next((name for name in pair if name in rates), pair[0]) for pair in pairs]
    spread = [rates.find(name) for name in names]
    each = zip(names, spread, strict=True)
    return documents.throughputs(*(s.number("mean") if s else rates.number(n) for n, s in each))


def _sending(asked: Tree, load: Tree) -> tuple[int | None, float | None]:
    """Return the load's concurrency and requests/s; None for a missing or infinite value."""
    args = load.at("args")
    limit = asked.number("concurrency") or args.number("max_concurrency")
    rate = asked.number("rate_qps") or args.number("request_rate")
    limit, rate = (v if v and 0 < v < math.inf else None for v in (limit, rate))
    return None if limit is None else int(limit), rate


def _server(scenario: Tree) -> StatedServer:
    stack = scenario.trees("stack")
    engines = [p for p in stack if p.at("standardized").text("kind") == "inference_engine"]
    if not engines:
        return StatedServer()
    if len(engines) > 1:
        raise NotUsable(f"the run had {len(engines)} engines behind one router, expected one")
    engine, facts = engines[0], engines[0].at("standardized")
    if (replicas := facts.count("replicas")) > 1:
        raise NotUsable(f"the run had {replicas} replicas behind one router, expected one")
    card = facts.at("accelerator")
    spelled = f"{facts.text('tool')} {facts.text('tool_version')}"
    return _stated(facts.at("model"), card, engine.at("native", "args"), spelled)


def _old_server(scenario: Tree) -> StatedServer:
    hosts = scenario.at("host").trees("accelerator") or [Tree()]
    engines = scenario.at("platform").trees("engine") or [Tree()]
    if len(hosts) > 1 or len(engines) > 1:
        count = max(len(hosts), len(engines))
        raise NotUsable(f"the run had {count} engines behind one router, expected one")
    spelled = f"{engines[0].text('name')} {engines[0].text('version')}"
    return _stated(scenario.at("model"), hosts[0], engines[0].at("args"), spelled)


def _stated(model: Tree, card: Tree, args: Tree, engine: str) -> StatedServer:
    flags = _parallelism(card.at("parallelism")) | _flags(args)
    return StatedServer(model.text("name"), card.text("model"), flags, engine=engine.strip())


def _parallelism(sizes: Tree) -> dict[str, FlagValue]:
    names = {"tp": "tensor", "pp": "pipeline", "dp": "data"}
    stated = [(name, sizes.count(key)) for key, name in names.items() if sizes.count(key)]
    found: dict[str, FlagValue] = {f"{name}_parallel_size": size for name, size in stated}
    return found | ({"enable_expert_parallel": True} if sizes.count("ep") > 1 else {})


def _flags(args: Tree) -> dict[str, FlagValue]:
    """Convert an engine's command-line options to flags; an option without a value is True."""
    found = dict(args.values)
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
