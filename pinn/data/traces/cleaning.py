"""What cleaning did: tables for the terminal and one page of plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pinn.specs.files.read_report import ReadReport

_MS = 1e3

#: Steps that are worth drawing; medians that are worth printing, and the cycles behind each.
MAX_DRAWN = 200_000
MAX_MEDIANS = 12
MIN_CYCLES = 5


def cleaning_tables(manifest: Mapping[str, Any]) -> str:
    """The report of a folder of trace tables as text.

    Args:
        manifest: Of the folder.
    """
    parts = [ReadReport.from_json(report).table() for report in manifest["reports"].values()]
    segments = manifest.get("segments", [])
    if segments:
        ambiguous = sum(bool(s["is_ambiguous"]) for s in segments)
        parts.append(
            f"servers and segments\n{len(manifest['servers']):8d}  servers\n"
            f"{len(segments):8d}  segments (one process on one clock)\n"
            f"{ambiguous:8d}  of them hold two servers that cannot be told apart"
        )
    parts.append(_counts("intervals from one step's start to the next", manifest["intervals"]))
    if manifest["medians_by_decodes"]:
        parts.append(_medians(manifest["medians_by_decodes"]))
    if manifest["request_issues"]:
        parts.append(_counts("requests by issue", manifest["request_issues"]))
    for check in manifest["targets"].values():
        parts.append(_target(check))
    if not manifest["targets"]:
        parts.append("targets\n  not checked against the floor: give --model and --gpu")
    return "\n\n".join(parts)


def _counts(title: str, counts: Mapping[str, int]) -> str:
    return "\n".join([title, *(f"{count:8d}  {name}" for name, count in counts.items())])


def _medians(rows: Sequence[Mapping[str, float]]) -> str:
    """Some medians over the whole range of decodes; all are in the manifest."""
    known = [row for row in rows if row["cycles"] >= MIN_CYCLES] or rows
    places = np.unique(np.linspace(0, len(known) - 1, MAX_MEDIANS).round().astype(int))
    lines = [
        f"{row['median_step_s'] * _MS:8.2f}  ms at {row['decode_requests']:.0f} decodes, "
        f"{row['cycles']:.0f} cycles"
        for row in (known[place] for place in places)
    ]
    return "\n".join(["median single cycle by decodes at its start (some of them)", *lines])


def _target(check: Mapping[str, Any]) -> str:
    verdict = (
        "accepted as a target of beta" if check["is_target"] else "REFUSED as a target of beta"
    )
    lines = [
        f"{check['column']}: {verdict}",
        f"{check['rows']:8d}  rows, median {check['median_s'] * _MS:.3g} ms, floor "
        f"{check['floor_median_s'] * _MS:.3g} ms, {check['below_floor']} below their floor",
    ]
    return "\n".join(
        [*lines, f"          {check['explanation']}"] if check["explanation"] else lines
    )


def cleaning_page(
    path: Path,
    steps: pd.DataFrame,
    cycles: pd.DataFrame,
    floors: pd.DataFrame,
    manifest: Mapping[str, Any],
) -> None:
    """Draw the page: targets against the floor, batch mix over time, cycles, what was dropped.

    Args:
        path: PNG to write.
        steps: Canonical steps; of many, about :data:`MAX_DRAWN` evenly spread ones.
        cycles: Their intervals, row by row.
        floors: Per candidate target its column and ``<name> floor``; empty without a deployment.
        manifest: Of the folder, with reports, intervals and targets.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(13, 9), layout="constrained")
    names = ", ".join(source["path"] for source in manifest["sources"])
    figure.suptitle(f"Cleaning of {names}", fontsize=12)
    _draw_targets(axes[0, 0], floors, manifest["targets"])
    _draw_mix(axes[0, 1], steps)
    _draw_cycles(axes[1, 0], steps, cycles)
    _draw_dropped(axes[1, 1], manifest)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_targets(axis: Any, floors: pd.DataFrame, targets: Mapping[str, Any]) -> None:
    axis.set_title("Candidate targets against the physical floor", fontsize=10)
    if floors.empty:
        axis.text(0.5, 0.5, "no deployment given: not checked", ha="center", va="center")
        axis.set_axis_off()
        return
    reach: list[float] = []
    for name, color in (("step_s", "tab:blue"), ("reported_duration_s", "tab:red")):
        values = floors[name].to_numpy(float)
        floor = floors[f"{name} floor"].to_numpy(float)
        use = np.isfinite(values) & (values > 0) & (floor > 0)
        if not use.any():
            continue
        verdict = "accepted" if targets[name]["is_target"] else "refused"
        axis.plot(
            floor[use] * _MS, values[use] * _MS, ".", ms=2, alpha=0.4, color=color,
            label=f"{name} ({verdict})", rasterized=True,
        )  # fmt: skip
        reach += [float(floor[use].min()) * _MS, float(floor[use].max()) * _MS]
    ends = [min(reach, default=0), max(reach, default=1)]
    axis.plot(ends, ends, "k-", lw=1, label="the floor itself")
    axis.set_yscale("log")
    axis.set_xlabel("floor of the batch, or of both ends of a window (ms)")
    axis.set_ylabel("value (ms)")
    axis.legend(fontsize=8, markerscale=5)


def _draw_mix(axis: Any, steps: pd.DataFrame) -> None:
    axis.set_title("Batch mix over time (means of 120 stretches of each server's run)", fontsize=10)
    if steps.empty:
        axis.set_axis_off()
        return
    seconds = (steps["start_s"] - steps.groupby("segment")["start_s"].transform("min")).to_numpy()
    edges = np.linspace(0, max(float(seconds.max()), 1e-9), 121)
    at = np.clip(np.digitize(seconds, edges) - 1, 0, 119)
    count = np.bincount(at, minlength=120)
    middle = (edges[1:] + edges[:-1]) / 2
    for column, label, color in (
        ("decode_requests", "decodes", "tab:blue"),
        ("prefill_tokens", "prompt tokens", "tab:orange"),
        ("waiting_depth", "waiting", "tab:red"),
    ):
        values = np.nan_to_num(steps[column].to_numpy(float))
        with np.errstate(invalid="ignore"):
            mean = np.bincount(at, weights=values, minlength=120) / count
        axis.plot(middle, mean, color=color, lw=1.2, label=label)
    axis.set_xlabel("time since the first step (s)")
    axis.set_ylabel("mean per step")
    axis.legend(fontsize=8)


def _draw_cycles(axis: Any, steps: pd.DataFrame, cycles: pd.DataFrame) -> None:
    axis.set_title("Cycles by batch: the target that is left", fontsize=10)
    good = cycles["set_aside"].isna().to_numpy()
    rows = np.flatnonzero(good)[:: max(1, int(good.sum() // 20_000))]
    if not len(rows):
        axis.set_axis_off()
        return
    single = cycles["kind"].to_numpy()[rows] == "single"
    x = steps["decode_requests"].to_numpy(float)[rows]
    y = cycles["step_s"].to_numpy()[rows] * _MS
    for mask, color, label in (
        (~single, "tab:gray", "window means"),
        (single, "tab:blue", "single"),
    ):
        axis.plot(x[mask], y[mask], ".", ms=2, alpha=0.5, color=color, label=label, rasterized=True)
    axis.set_ylim(0, np.quantile(y, 0.999) * 1.15)
    axis.set_xlabel("decodes at the interval's start")
    axis.set_ylabel("time per step (ms)")
    axis.legend(fontsize=8, markerscale=5)


def _draw_dropped(axis: Any, manifest: Mapping[str, Any]) -> None:
    axis.set_title("What was kept and what was dropped", fontsize=10)
    bars = [(name, count, "set aside" not in name) for name, count in manifest["intervals"].items()]
    for level, report in manifest["reports"].items():
        bars.append((f"{level}: accepted", report["accepted"], True))
        refused = sorted(report["refused"].items(), key=lambda item: -item[1])
        bars += [(f"{level}: {reason[:48]}", count, False) for reason, count in refused[:4]]
    bars = [bar for bar in bars if bar[1]][:28]
    place = np.arange(len(bars))[::-1]
    colors = ["tab:blue" if kept else "tab:red" for _, _, kept in bars]
    axis.barh(place, [count for _, count, _ in bars], color=colors)
    axis.set_yticks(place, [name for name, _, _ in bars], fontsize=7)
    axis.set_xscale("log")
    for y, (_, count, _) in zip(place, bars, strict=True):
        axis.text(count, y, f" {count:,}", va="center", fontsize=7)
    axis.margins(x=0.15)
    axis.set_xlabel("count (log scale); red: refused or set aside")
