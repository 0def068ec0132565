"""InferenceX (InferenceMAX) ``agg_<name>.json``: one object a run, or a list of them.

Latencies are in seconds, without a suffix. Its CI draws lengths uniform in [0.8, 1] x the nominal
ones and drops the totals; it sends ten prompts per unit of concurrency, prefix cache off.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pinn.data.benchmarks.benchmark_run import BenchmarkRun, Lengths, Load, StatedServer
from pinn.data.benchmarks.documents import Document
from pinn.data.benchmarks.engine_name import engine_flags
from pinn.data.benchmarks.figures import Foreign, checked, kept, statistics_of
from pinn.data.benchmarks.given_load import GivenLoad, NotUsable
from pinn.data.silicon import LABEL_SCHEMES, LENGTH_RANGE, PROMPTS_PER_CONCURRENCY
from pinn.specs.serving import SGLANG, TRTLLM

TOOL = "InferenceX"
_NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
_ASSUMED = (
    f"{PROMPTS_PER_CONCURRENCY} prompts per unit of concurrency, lengths uniform between "
    f"{LENGTH_RANGE[0]:g} and {LENGTH_RANGE[1]:g} x isl and osl, prefix cache off: as its CI runs"
)


class _File(Foreign):
    hw: str
    conc: int
    model: str
    framework: str = ""
    precision: str = ""
    image: str = ""
    spec_decoding: str | None = None
    disagg: bool | None = False
    isl: int
    osl: int
    tp: int = 1
    ep: int | None = 1
    dp_attention: bool | str | None = False
    output_tput_per_gpu: float | None = None


def is_inferencex(document: Document) -> bool:
    """Whether InferenceX wrote it."""
    return {"hw", "conc", "isl", "osl", "mean_ttft"} <= document.first.keys()


def read_inferencex(values: Any, name: str, given: GivenLoad) -> BenchmarkRun:
    """One run.

    Raises:
        NotUsable: If prefill and decode ran apart, or attention data-parallel over some GPUs.
    """
    file = checked(_File, values)
    if file.disagg:
        raise NotUsable("prefill and decode on servers of their own")
    engine = f"{file.framework} {file.image.rpartition(':')[2]}".strip()
    apart = str(file.dp_attention).lower() == "true"
    if apart and engine_flags(engine).get("engine") != TRTLLM:
        raise NotUsable("data-parallel attention over a number of GPUs that it does not state")
    figures: dict[str, float] = {}
    for latency, spelled in _NAMES.items():
        figures |= statistics_of(latency, partial(_statistic, values, spelled), 1.0)
    if file.output_tput_per_gpu:
        figures |= kept({"output_tokens_per_s": file.output_tput_per_gpu * file.tp})
    requests = given.num_prompts or PROMPTS_PER_CONCURRENCY * file.conc
    load = Load(
        requests,
        _lengths(file.isl),
        _lengths(file.osl),
        given.or_stated("concurrency", file.conc, name),
    )
    flags: dict[str, Any] = {"tensor_parallel_size": file.tp, "enable_prefix_caching": False}
    if apart:
        flags["enable_dp_attention"] = True
    if (file.ep or 1) > 1:
        others = engine_flags(engine).get("engine") in (SGLANG, TRTLLM)
        flags |= {"ep_size": file.ep} if others else {"enable_expert_parallel": True}
    if file.precision.lower() in LABEL_SCHEMES:
        flags["precision"] = LABEL_SCHEMES[file.precision.lower()]
    speculative = (file.spec_decoding or "none").lower() not in ("none", "false", "")
    server = StatedServer(
        file.model, file.hw.split("-")[0], flags, engine=engine, speculative=speculative
    )
    return BenchmarkRun(name, TOOL, load, figures, requests, 0, server, (_ASSUMED,))


def _statistic(values: Mapping[str, Any], spelled: str, each: str) -> float | None:
    return values.get(f"{'median' if each == 'p50' else each}_{spelled}")


def _lengths(nominal: int) -> Lengths:
    low, high = (share * nominal for share in LENGTH_RANGE)
    return Lengths((low + high) / 2, low, high)
