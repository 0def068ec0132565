"""Acceptance of drafted tokens, measured: the counters of vLLM's metrics page.

``spec_decode_num_drafts``, ``spec_decode_num_accepted_tokens_per_pos`` and, where a page has no
positions, ``spec_decode_num_draft_tokens`` and ``spec_decode_num_accepted_tokens`` (vLLM 0.15.1
``vllm/v1/spec_decode/metrics.py``), since the server was started.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from pinn.errors import PinnError
from pinn.specs.documents import read_text
from pinn.specs.limits import MOST_CSV_BYTES

_COUNTER = re.compile(
    r"^vllm:spec_decode_num_(\w+?)(?:_total)?(?:\{(.*)\})?\s+([0-9.eE+]+)", re.MULTILINE
)
_POSITION = re.compile(r'position="(\d+)"')


def measured_acceptance(text: str, where: str) -> tuple[float, ...]:
    """By position, the share of drafted tokens accepted where all before them were.

    Engines of one page are added up. Without counts by position one rate for all.

    Args:
        text: A scrape of the page.
        where: What errors call it.

    Raises:
        PinnError: If it tells of no drafted token.
    """
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for name, labels, value in _COUNTER.findall(text):
        position = _POSITION.search(labels)
        if name == "accepted_tokens_per_pos" and position:
            at = int(position[1])
            positions[at] = positions.get(at, 0.0) + float(value)
        else:
            sums[name] = sums.get(name, 0.0) + float(value)
    drafts, drafted = sums.get("drafts", 0.0), sums.get("draft_tokens", 0.0)
    if not drafted and not drafts:
        raise PinnError(
            f"{where}: no vllm:spec_decode counter above 0: give a metrics page of a server that "
            "speculates, or --speculative-acceptance as a rate"
        )
    if not positions or not drafts:
        return (_share(sums.get("accepted_tokens", 0.0), drafted),)
    counts = [drafts, *(positions[at] for at in sorted(positions))]
    return tuple(_share(after, before) for before, after in pairwise(counts))


def acceptance_text(path: Path) -> str:
    """What ``--speculative-acceptance`` takes, of a file that holds a metrics page.

    Raises:
        PinnError: If it cannot be read or tells of no drafted token.
    """
    text = read_text(path, MOST_CSV_BYTES, "text")
    return ",".join(f"{rate:.4f}" for rate in measured_acceptance(text, str(path)))


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole else 0.0
