"""Reader of benchmarks' console output: the table "Serving Benchmark Result" of vLLM and SGLang.

The labels are those in the source code of vLLM 0.10.2 to 0.33.0 (``vllm/benchmarks/serve.py:
benchmark``) and SGLang 0.4.9 to 0.5.23 (``bench_serving.py`` and ``benchmark/serving.py:
benchmark``). The table contains the values of the result file under other names, rounded to two
decimals. Throughput is therefore computed from the totals. vLLM prints neither model nor engine
flags, and omits an unlimited concurrency or rate. Other text around a table, such as a log, is
skipped.
"""

import re

from pinn.measurements.benchmarks import marks, vllm_bench
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun, StatedServer
from pinn.measurements.benchmarks.documents import Document, NotUsable
from pinn.measurements.benchmarks.reading import Reading
from pinn.measurements.benchmarks.tree import Tree

_HEADING = re.compile(r"={3,} *Serving Benchmark Result *={3,}")

#: Keys in the client's result file, by label in the printed table.
_KEYS = {
    "Successful requests": "completed",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Failed requests": "failed",
    "Maximum request concurrency": "max_concurrency",
    "Max request concurrency": "max_concurrency",
    "Request rate configured (RPS)": "request_rate",
    "Traffic request rate": "request_rate",
    "Backend": "backend",
    "Acceptance length": "accept_length",
    "Accept length": "accept_length",
}
_STATISTIC, _METRIC = r"(Mean|Median|P\d{2})", r"(TTFT|TPOT|ITL|E2EL|E2E Latency)"
#: Patterns of a line of the printed table, with or without a log prefix, and of the line that ends
#: the table.
_LINE = re.compile(
    rf"\b(?:({'|'.join(map(re.escape, _KEYS))})|{_STATISTIC} {_METRIC} \(ms\)): *\|? *([^\s|]+)"
)
_END = re.compile(r"={20}")
#: Labels required in a printed table, because the load is unknown without any of them.
_NEEDED = tuple(_KEYS)[:4]
#: First word of the text that SGLang's client prints for unlimited concurrency.
_NOT_SET = "not"

#: Heading that identifies the table printed by the clients of vLLM and SGLang.
is_console = marks.pattern("the heading 'Serving Benchmark Result'", _HEADING)


def console_points(document: Document) -> list[Tree]:
    """Return the tables in a text, each with the keys of a result file."""
    return [_values(text) for text in _HEADING.split(document.text)[1:]]


def _values(text: str) -> Tree:
    found: dict[str, str] = {}
    for label, statistic, metric, value in _LINE.findall(_END.split(text)[0]):
        name = "e2e" if metric.startswith("E2E") else metric.lower()
        if value != _NOT_SET:
            found.setdefault(_KEYS.get(label, f"{statistic.lower()}_{name}_ms"), value)
    return Tree(found)


def read_console(values: Tree, reading: Reading) -> BenchmarkRun:
    """Read a run from one printed table.

    Raises:
        NotUsable: If no request was served, or the table is incomplete.
        PinnError: If data is missing from the file and the user did not supply it.
    """
    lacking = [label for label in _NEEDED if _KEYS[label] not in values]
    if lacking:
        raise NotUsable(f"the printed table lacks {', '.join(lacking)}")
    tool = "sglang.bench_serving" if "backend" in values else "vllm bench serve"
    reading.tool = f"{tool}, printed"
    file = vllm_bench.ClientFile.checked(values)
    sent = reading.given.num_prompts or file.completed + (file.failed or 0)
    load = vllm_bench.client_load(file, sent, reading)
    totals = file.completed / file.duration, file.total_output_tokens / file.duration
    file = file.model_copy(update={"request_throughput": totals[0], "output_throughput": totals[1]})
    figures = vllm_bench.client_figures(file, values, "e2e")
    is_drafted = (values.number("accept_length") or 1.0) > 1
    server = StatedServer(engine=file.backend, speculative=is_drafted)
    return reading.run(load, figures, file.completed, max(sent - file.completed, 0), server)
