"""Record the static share that SGLang's own function gives servers, for test_sglang_reserves.py.

    pip download sglang==0.5.23 --no-deps -d /tmp/wheels
    unzip -q /tmp/wheels/sglang-0.5.23*.whl -d /tmp/sglang-0.5.23
    PYTHONPATH=scripts python tests/memory/record_sglang_reserves.py 0.5.23=/tmp/sglang-0.5.23 ...

``handle_gpu_memory_settings`` of each release is compiled from its file, with stand-ins for what it
imports (``scripts/engine_reading/sglang.py``).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from engine_reading.sglang import PROMPT_GRAPHS_SINCE, SERVERS, settings
from engine_reading.wheel import EngineSource

from pinn.engines.recipe import release

CASES = Path(__file__).with_name("sglang_reserves.json")
MEMORY_GIB = (24, 80, 192)


def recorded(version: str, folder: Path) -> list[dict[str, Any]]:
    """Return the share of each kind of server on each size of GPU."""
    source, rows = EngineSource("sglang", version, folder), []
    for gib, users in product(MEMORY_GIB, SERVERS):
        if users.prompt_graph_tokens and release(version) < PROMPT_GRAPHS_SINCE:
            continue
        chunk, graphs, share = settings(source, gib, users)
        asked = replace(
            users, chunk=chunk, graphs=graphs, prompt_graph_tokens=chunk * users.prompt_graph_tokens
        )
        rows.append({"gib": gib, "share": share, "users": asdict(asked)})
    return rows


if __name__ == "__main__":
    named = dict(text.split("=", 1) for text in sys.argv[1:])
    found = {version: recorded(version, Path(folder)) for version, folder in named.items()}
    CASES.write_text(json.dumps(found, separators=(",", ":")) + "\n")
