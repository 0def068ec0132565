"""What releases of one engine change in the times of its kernels: equal work in two tables.

    pip download --no-deps --dest /tmp/tables aisimulate==0.13.0.dev202610270000000085
    unzip -q '/tmp/tables/*.whl' '*/systems/data/*' -d /tmp/tables
    python scripts/compare_releases.py /tmp/tables/aisimulate_core/systems --engine vllm

Every operator that the tables have of two releases on one GPU is joined on its sizes and formats.
A line is one operator, number format and pair of consecutive releases: how many kernels are in
both, and the later release's time over the earlier one's (median, 10th and 90th percentile) for
kernels below and from 30 us, below which launches decide. ``kernels`` names both where the tables
call them differently.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import pandas as pd

from pinn.engines.recipe import release

#: Columns that say how and on what a kernel was timed, not which.
NOT_SIZES = {"framework", "version", "device", "op_name", "kernel_source", "latency", "power"}
#: From here on, in milliseconds as the tables have it, a kernel's work decides its time.
LONG_MS = 0.03
FORMATS = ("gemm_dtype", "moe_dtype", "kv_cache_dtype", "allreduce_dtype", "mla_dtype")
MOST_ROWS = 2_000_000


def main() -> None:
    """Print the comparison, and write it where ``--out`` says."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("systems", type=Path, help="folder that holds data/<gpu>/<operator>/...")
    asked.add_argument("--engine", default="vllm")
    asked.add_argument("--out", type=Path, help="CSV of all lines")
    options = asked.parse_args()
    lines = compared(options.systems / "data", options.engine)
    if options.out:
        lines.to_csv(options.out, index=False)
    print(lines.to_string(index=False, max_colwidth=60))


def compared(data: Path, engine: str) -> pd.DataFrame:
    """One line per GPU, table, number format and pair of consecutive releases."""
    found = []
    for folder in sorted(data.glob(f"*/*/{engine}")):
        tables = {path.name for path in folder.glob("*/*.parquet")}
        for name in sorted(tables):
            paths = sorted(folder.glob(f"*/{name}"), key=lambda path: release(path.parent.name))
            for earlier, later in pairwise(paths):
                found += _pair(earlier, later)
    return pd.DataFrame(found)


def _pair(earlier: Path, later: Path) -> list[dict[str, object]]:
    before, after = (pd.read_parquet(path) for path in (earlier, later))
    sizes = [c for c in before.columns if c in after.columns and c not in NOT_SIZES]
    both = _fastest(before, sizes).merge(_fastest(after, sizes), on=sizes, suffixes=("", "_later"))
    if both.empty:
        return []
    assert len(both) < MOST_ROWS
    both["ratio"] = both["latency_later"] / both["latency"]
    form = next((c for c in FORMATS if c in sizes), None)
    groups = both.groupby([form] if form else lambda _: "", sort=True)
    system, _, _, version, name = earlier.parts[-5:]
    return [
        {
            "gpu": system,
            "table": name.removesuffix("_perf.parquet"),
            "format": key[0] if isinstance(key, tuple) else key,
            "releases": f"{version} -> {later.parent.name}",
            **_ratios(rows),
            "kernels": _kernels(rows),
        }
        for key, rows in groups
    ]


def _fastest(table: pd.DataFrame, sizes: list[str]) -> pd.DataFrame:
    """One row for each work: what an engine would pick where several kernels were timed."""
    kept = table[[*sizes, "kernel_source", "latency"]].sort_values("latency")
    return kept[kept["latency"] > 0].drop_duplicates(sizes)


def _ratios(rows: pd.DataFrame) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, chosen in (
        ("short", rows[rows["latency"] < LONG_MS]), ("long", rows[rows["latency"] >= LONG_MS])
    ):  # fmt: skip
        low, middle, high = chosen["ratio"].quantile([0.1, 0.5, 0.9]).round(2)
        found[f"n_{name}"] = len(chosen)
        found[name] = f"{middle:.2f} ({low:.2f} to {high:.2f})" if len(chosen) else "-"
    return found


def _kernels(rows: pd.DataFrame) -> str:
    """The commonest pair of names where they differ; else nothing."""
    pairs = (rows["kernel_source"] + " -> " + rows["kernel_source_later"]).value_counts()
    before, _, after = str(pairs.index[0]).partition(" -> ")
    return "" if before == after else f"{before} -> {after}"


if __name__ == "__main__":
    main()
