"""Choice of the result files in a folder, excluding companion files of benchmark tools."""

from collections.abc import Iterable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from pinn.errors import PinnError

#: Names of files that contain a run's settings; the readers of result files read them, too.
_SETTINGS = {"config.yaml", "profile.yaml", "exp-config.yaml"}

#: Patterns of companion files (summaries, copies, warm-ups), with the patterns of the result files
#: next to which they are skipped. ``vllm bench sweep serve`` writes files ``run=N.json`` together
#: with their summary and a table of all runs (vLLM 0.33.0 ``vllm/benchmarks/sweep/serve.py:
#: run_comb``).
_REPEATED = {
    "summary_lifecycle_metrics.json": "stage_*_lifecycle_metrics.json",
    "*_prometheus_metrics.json": "*_lifecycle_metrics.json",
    "summary.json": "run=*.json",
    "warmup.json": "run=*.json",
    "summary.csv": "*/run=*.json",
    "*_individual_responses.json": "*_summary.json",
    "profile_export_aiperf.csv": "profile_export_aiperf.json",
    "profile_export.jsonl": "profile_export_aiperf.json",
}


def result_files(paths: Iterable[Path]) -> list[Path]:
    """Return all given files, and the result files in given folders.

    Raises:
        PinnError: If a path does not exist.
    """
    found: list[Path] = []

    @cache  # all files of a folder share the same companion files
    def has(folder: Path, pattern: str) -> bool:
        return any(folder.glob(pattern))

    def is_repeated(path: Path) -> bool:
        fits = (others for name, others in _REPEATED.items() if fnmatch(path.name, name))
        return any(has(path.parent, others) for others in fits)

    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file())
            found += [p for p in inside if p.name not in _SETTINGS and not is_repeated(p)]
        elif path.is_file():
            found.append(path)
        else:
            raise PinnError(f"{path} does not exist: give the result files of a benchmark")
    return found
