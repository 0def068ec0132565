"""Pages to play with: what their command is asked for, and what is set on one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fuzz.command_targets import GPUS, MODELS, mostly
from fuzz.hostile_values import VALUES
from fuzz.target import Fuzzed
from hypothesis import strategies as st

from pinn.errors import PinnError
from pinn.planning.explore.grid import Stops
from pinn.planning.explore.page import ExplorePage, explore_page


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
    flags = {k: v for k, v in asked.items() if k not in ("model", "gpus")}
    page = _explored(shared, asked["model"], asked["gpus"], flags)
    text, found = page.render(), len(page.servers)
    assert text.count("</script>") == text.count("<script")
    (data,) = re.findall(r'type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
    assert len(json.loads(data, parse_constant=_not_finite)["servers"]) == found > 0


def _explored(shared: Fuzzed, model: str, gpus: list[str], flags: dict[str, Any]) -> ExplorePage:
    """Simulate a page of few stops."""
    stops = Stops((512, 2048), (64,), (0, 4096), 16)
    return explore_page(model, gpus, flags, shared.checkpoint, stops)


def _not_finite(name: str) -> float:
    raise AssertionError(name)


_FIELDS = ("inFlight", "prompt", "output", "context")
#: Puts values into controls as a hand does, and gives the page's complaints and all that it shows.
_SET = """(values => {
  reset();
  complain("");
  ["tp", "format"].forEach((id) => { byId(id).selectedIndex = 0; });
  for (const [id, value] of values) {
    const at = byId(id);
    if (at.options) at.selectedIndex = value % at.options.length; else at.value = value;
    at.dispatchEvent(new Event(at.options ? "change" : "input"));
  }
  const texts = (chosen) => [...document.querySelectorAll(chosen)].map((at) => at.textContent);
  return [texts(".error").join(""), texts("main").join("")];
})"""


def write_page(shared: Fuzzed) -> Path:
    """A page of two GPUs, sizes and formats."""
    path = shared.folder / "played.html"
    flags = {"tensor_parallel_size": [1, 2], "precision": ",fp8"}
    _explored(shared, MODELS[0], GPUS[:2], flags).write(path)
    return path


def settings(_: Fuzzed) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Values of sliders, number fields and menus, one after the other."""
    usual = st.one_of(st.integers(1, 4096), st.integers(0, 200_000))
    typed = st.tuples(st.just("inFlight"), st.one_of(*[usual] * 9, VALUES.map(str)))
    slid = st.tuples(st.sampled_from([f"{name}-slider" for name in _FIELDS]), st.integers(-1, 40))
    menus = st.tuples(st.sampled_from(["tp", "format"]), st.integers(0, 3))
    return st.lists(st.one_of(typed, slid, menus), min_size=1, max_size=3)


def check_settings(shared: Fuzzed, given: list[tuple[str, Any]]) -> None:
    """All that the page shows are words and numbers, and nothing goes wrong behind it."""
    shared.tab.errors.clear()
    complaints, shown = shared.tab.value(f"{_SET}({json.dumps(given)})")
    # Chromium says so of a text that is put, not typed, into a field of numbers.
    assert [said for said in shared.tab.errors if "cannot be parsed" not in said] == []
    assert not re.search("NaN|Infinity|undefined|null|object", shown)
    if complaints:
        raise PinnError(complaints)
