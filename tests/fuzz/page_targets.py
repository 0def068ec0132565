"""Pages to play with: what their command is asked for."""

from __future__ import annotations

import json
import re
from typing import Any

from fuzz.command_targets import GPUS, MODELS, mostly
from fuzz.target import Fuzzed
from hypothesis import strategies as st


def pages(_: Fuzzed) -> st.SearchStrategy[dict[str, Any]]:
    """Model, GPUs, sizes, formats and a flag of a page: all usual, or some of them hostile."""
    formats, sizes, places = ["", "fp8", "fp8,mxfp4", "bf16"], [1, 2, 4, 8], [1, 64, 1024]

    def page(text: Any, number: Any) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries(
            {
                "model": text(MODELS),
                "gpus": st.lists(text(GPUS), min_size=1, max_size=2),
                "tensor_parallel_size": st.lists(number(sizes), min_size=1, max_size=2),
                "precision": text(formats),
                "max_num_seqs": number(places),
            }
        )

    usual = st.sampled_from
    return st.one_of(page(usual, usual), page(mostly, lambda n: usual(n) | st.integers()))


def check_page(shared: Fuzzed, asked: dict[str, Any]) -> None:
    """A page holds finite numbers of its servers, and no text that ends its scripts."""
    from pinn.interface.commands.explore import write_explore_page

    path = shared.folder / "explore.html"
    path.unlink(missing_ok=True)
    flags = {k: v for k, v in asked.items() if k not in ("model", "gpus")}
    found = write_explore_page(path, asked["model"], asked["gpus"], shared.checkpoint, flags)
    text = path.read_text(encoding="utf-8")
    assert text.count("</script>") == text.count("<script")
    (data,) = re.findall(r'type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
    assert len(json.loads(data, parse_constant=_not_finite)["servers"]) == found > 0


def _not_finite(name: str) -> float:
    raise AssertionError(name)
