"""Result files in a folder, without the other files that tools write beside them."""

from collections.abc import Iterable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from pinn.errors import PinnError

#: Files with settings of a run, which the readers of its results use.
_SETTINGS = {"config.yaml", "profile.yaml", "exp-config.yaml"}

#: Name of a file that repeats, summarizes or warms up for others -> names of these; it is skipped
#: beside them. ``run=N.json`` are of ``vllm bench sweep serve`` (vLLM 0.33.0
#: ``vllm/benchmarks/sweep/serve.py: run_comb``), which also writes their summary and a table of
#: all.
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
    """Return the given files, and the files with results in the given folders.

    Raises:
        PinnError: If a path does not exist.
    """
    found: list[Path] = []

    @cache  # files of one folder have the same companions
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
            raise PinnError(f"no file or folder at {path}: give the result files of a benchmark")
    return found
