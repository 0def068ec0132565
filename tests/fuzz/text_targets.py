"""Texts of the command line: names, grids, limits that clients are promised, prices."""

from __future__ import annotations

from typing import Any

from fuzz.hostile_values import VALUES
from fuzz.target import Fuzzed
from hypothesis import strategies as st

#: Pieces that texts are put together from, so that many are nearly right.
_NAMES = [
    "Qwen/Qwen3-30B-A3B", "llama-3.1-8b", "meta-llama", "Qwen2.5-7B", "DeepSeek-R1", "Instruct",
    "2507", "FP8", "AWQ", "GPTQ", "Int4", "Int8", "w4a16", "NVFP4", "GGUF", "bnb", "dynamic",
    "H100", "RTX", "4090", "A100", "SXM", "/", "-", ".", "_", "#", " ", "..", "~", "",
]  # fmt: skip
_LIMITS = [
    "ttft", "tpot", "itl", "e2e", "<=", "<", "1", "40", ".", "1.2.3", "1e-3", "1e999", "ms", "s",
    " for 95 %", " for 1e3 %", "p99 ", "p99.9 ", "p0 ", "p101 ", "mean ", ",", ";", " ",
]  # fmt: skip
_GRID = [
    "gpu=", "H100,L40S", "H100", "model=", "Llama-3.1-8B", "tensor_parallel_size=", "1,2", "3",
    "max_num_seqs=", "64", "-tp=", " ", ",", "=", "=", "nonsense=",
]  # fmt: skip
_PRICES = ["H100", "L40S", "=", "2.5", " ", ",", "-1", "nan", "1e999", "H1000"]


def _joined(pieces: list[str], usual: list[str]) -> st.SearchStrategy[str]:
    """Usual texts, texts of their pieces, and any text."""
    hostile = VALUES.map(str)
    parts = st.lists(st.one_of(*[st.sampled_from(pieces)] * 5, hostile), max_size=9)
    return st.one_of(st.sampled_from(usual), *[parts.map("".join)] * 4, st.text(max_size=30))


def names(_: Fuzzed) -> st.SearchStrategy[str]:
    """Names of models and of GPUs."""
    words = st.lists(st.sampled_from(_NAMES[:17]), min_size=1, max_size=5).map("-".join)
    return st.one_of(words, _joined(_NAMES, ["Llama-3.1-8B", "Qwen/Qwen3-8B-FP8", "h100", "4090"]))


def check_name(_: Fuzzed, text: str) -> None:
    """A name is a model's, a GPU's, or refused as both."""
    from pinn.errors import PinnError
    from pinn.specs.catalog import load_model
    from pinn.specs.gpu import load_gpu

    try:
        found = load_gpu(text).name
    except PinnError:
        found = load_model(text).title
    assert found.isprintable()


def grids(_: Fuzzed) -> st.SearchStrategy[str]:
    """Grids as typed after ``--grid``."""
    return _joined(_GRID, ["gpu=H100,L40S tensor_parallel_size=1,2", "model=Llama-3.1-8B gpu=L4"])


def check_grid(_: Fuzzed, text: str) -> None:
    """A grid gives configurations that each make a deployment or a reason."""
    from pinn.engines.configurations import make_deployments, parse_grid

    rows: list[Any] = [{"model": "Llama-3.1-8B", "gpu": "H100"} | row for row in parse_grid(text)]
    kept, deployments, reasons = make_deployments(rows, skip_invalid=True)
    assert len(kept) == len(deployments)
    assert len(kept) + len(reasons) == len(rows)


def limits_and_prices(_: Fuzzed) -> st.SearchStrategy[tuple[str, str]]:
    """Return texts as values of ``--slo`` and ``--price``."""
    usual = ["ttft<=1s, tpot<=40ms for 95 %", "p99 ttft<=2s", "mean e2e<=20s; p95 itl<=80ms"]
    return st.tuples(_joined(_LIMITS, usual), _joined(_PRICES, ["H100=2.5 L40S=1.1", "H100=2"]))


def check_limits_and_prices(_: Fuzzed, given: tuple[str, str]) -> None:
    """Limits allow some time; prices are positive."""
    from pinn.planning.prices import read_prices
    from pinn.simulator.slo import parse_slo

    found = parse_slo(given[0])
    assert all(0 < price.per_hour < float("inf") for price in read_prices(given[1]).values())
    assert found.statistics or found.goodput is not None
    assert all(0 < limit.seconds < float("inf") for limit in found.statistics)
