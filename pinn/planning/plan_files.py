"""Files that a plan writes: plan.json, plan.csv, its page and its manifest."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from pinn.common.files import write_whole
from pinn.common.tables import write_rows
from pinn.engines.routers import RANDOM
from pinn.errors import PinnError
from pinn.planning.manifest import manifest
from pinn.planning.plan import Choice, Plan

#: Names of the files that a plan writes to a folder.
FILES = ("plan.html", "plan.json", "plan.csv", "manifest.yaml", "frontier.png", "percentiles.png",
         "step-time.png")  # fmt: skip

#: Number of significant digits in plan.json and plan.csv; predictions are less accurate.
_DIGITS = 6


def _rounded(value: object) -> object:
    """Round the floats of a document to significant digits, such as 47.300000000000004 to 47.3."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value


def plan_json(plan: Plan) -> bytes:
    """Return the content of plan.json as bytes."""
    document = _rounded(msgspec.to_builtins(plan))
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def write_files(plan: Plan, folder: Path) -> None:
    """Write plan.json, plan.csv, plan.html, its plots and the manifest to a folder."""
    from pinn.planning.page import write_page  # plotting modules are slow to import

    write_whole(folder / "plan.json", plan_json(plan))
    write_rows(choice_rows(plan), folder / "plan.csv")
    write_page(plan, folder)
    with suppress(PinnError):  # TensorRT-LLM on several machines has no manifest
        write_whole(folder / "manifest.yaml", manifest(plan))


def choice_rows(plan: Plan) -> list[dict[str, object]]:
    """Return the rows of plan.csv, best first, as dicts; column names include the unit."""
    pools = ("prefill", "decode") if any(choice.pools for choice in plan.choices) else ()
    return [
        {"rank": place, "model": plan.ask.model, "label": choice.label}
        | {name: _rounded(cell) for name, cell in _row(choice).items()}
        | dict(zip(pools, choice.pools or (None, None), strict=False))
        for place, choice in enumerate(plan.choices, 1)
    ]


#: Columns of plan.csv that are fields of ``Choice``: those before and those after the columns of
#: flags.
_FIRST_COLUMNS = ("gpus", "cost_per_hour", "cost_per_million_prompt_tokens",
                  "cost_per_million_output_tokens", "replicas", "engine", "gpu",
                  "gpus_per_replica")  # fmt: skip
_LAST_COLUMNS = ("limited_by", "fails_first", "chance", "safe", "serve_command", "simulate_command")


def _row(c: Choice) -> dict[str, object]:
    low, high = c.fleet_rate.interval_per_s or (None, None)
    # There is no range without rates for further seeds, which may be missing for lack of time.
    seeds = c.highest_rate.seeds_per_s if len(c.highest_rate.seeds_per_s) > 1 else ()
    return {
        **{name: getattr(c, name) for name in _FIRST_COLUMNS},
        **c.flags,
        **{f"format_{part}": name for part, name in c.formats.items()},
        "coefficients": c.coefficients,
        "is_partial": c.is_partial,
        "highest_rate_per_s": c.highest_rate.per_s,
        "lowest_rate_that_fails_per_s": c.highest_rate.fails_per_s,
        "highest_rate_least_draw_per_s": min(seeds, default=None),
        "highest_rate_most_draw_per_s": max(seeds, default=None),
        "fleet_rate_per_s": None if c.is_lower_bound else c.fleet_rate.per_s,
        "fleet_rate_bad_end_per_s": low,
        "fleet_rate_good_end_per_s": high,
        "utilization": c.utilization,
        "rate_per_replica_per_s": c.at_rate.rate_per_s,
        "met_share": c.seen.met_share,
        "preemptions": c.seen.preemptions,
        "met_with_random_routing": next(
            (each.point.holds for each in c.fleets if each.routing == RANDOM), None
        ),
        "met_with_one_lost": None if c.with_one_lost is None else c.with_one_lost.holds,
        **{
            f"{metric}_{name}_s": value
            for metric, table in c.seen.latency_s.items()
            for name, value in table.items()
        },
        "output_tokens_per_gpu_s": c.seen.output_tokens_per_gpu_s,
        "user_tokens_per_s": c.seen.user_tokens_per_s,
        **{name: getattr(c, name) for name in _LAST_COLUMNS},
    }
