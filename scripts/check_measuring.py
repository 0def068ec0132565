"""Compare measured steps with the engine's own iteration details, step by step.

Run with the interpreter that has vLLM (from 0.27, whose steps carry their details):

    PYTHONPATH=. PYTHON scripts/check_measuring.py --model FOLDER --minutes 2 --out steps [FLAGS]

The details' elapsed time covers the wait for the model alone; ``engine_ms`` is that span, and is
compared with it. The last line is one JSON document.
"""

from __future__ import annotations

import json
import os
import sys
from statistics import median
from typing import Any

from pinn.server.program import command
from pinn.server.program.engine import VllmEngine
from pinn.server.program.table import Step


class CheckedEngine(VllmEngine):
    """Beside each step, what the engine says of it."""

    pairs: list[tuple[Step, Any]] = []  # noqa: RUF012 - one engine a process

    def __init__(self, arguments: list[str]) -> None:
        super().__init__([*arguments, "--enable-logging-iteration-details"])
        self._details: list[Any] = []
        step = self._core.step_fn

        def noted() -> Any:
            outputs, executed = step()
            for output in (outputs or {}).values():
                stats: Any = getattr(output, "scheduler_stats", None)
                details = getattr(stats, "iteration_details", None)
                if details is not None:
                    self._details.append(details)
            return outputs, executed

        self._core.step_fn = noted

    def step(self) -> list[Step]:
        """One turn of the loop; pairs it with its details."""
        found = super().step()
        if len(found) == len(self._details):
            self.pairs.extend(zip(found, self._details, strict=True))
        elif found or self._details:
            self.pairs.extend((step, None) for step in found)
        self._details.clear()
        return found


def main() -> int:
    """Measure, then compare."""
    if "--out" not in sys.argv:
        print(__doc__)
        return 2
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    code = command.main(sys.argv[1:], CheckedEngine)
    pairs = CheckedEngine.pairs
    same, ratios = 0, []
    for step, logged in pairs:
        if logged is None:
            continue
        same += (step.prompts, step.tokens, step.decodes) == (
            logged.num_ctx_requests, logged.num_ctx_tokens, logged.num_generation_requests,
        )  # fmt: skip
        ratios.append(1e3 * step.engine / logged.elapsed_ms)
    near = sum(abs(ratio - 1) <= 0.02 for ratio in ratios)
    print(json.dumps({
        "steps": len(pairs), "with_details": len(ratios), "same_composition": same,
        "median_ratio": median(ratios) if ratios else None, "within_2_percent": near,
    }))  # fmt: skip
    return code


if __name__ == "__main__":
    sys.exit(main())
