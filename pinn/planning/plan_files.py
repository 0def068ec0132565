"""A plan as files: JSON, a CSV table of the choices, and a page with its pictures."""

from pathlib import Path

import msgspec

from pinn.common.files import write_whole
from pinn.common.tables import write_rows
from pinn.planning.plan import Choice, Plan


def write_files(plan: Plan, folder: Path) -> None:
    """Write plan.json, plan.csv, plan.html and its pictures into a folder."""
    from pinn.planning.page import write_page  # pictures take long to import

    write_plan(plan, folder / "plan.json")
    write_csv(plan, folder / "plan.csv")
    write_page(plan, folder)


def write_plan(plan: Plan, path: Path) -> None:
    """Write the plan; the file appears whole or not at all."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")


def write_csv(plan: Plan, path: Path) -> None:
    """One row per choice, best first; SI units, named in the columns."""
    rows = choice_rows(plan)
    write_rows(rows, list(rows[0]), path)


def choice_rows(plan: Plan) -> list[dict[str, object]]:
    """What :func:`write_csv` writes: column to value, for each choice."""
    rows = [_row(place, choice) for place, choice in enumerate(plan.choices, 1)]
    if any(choice.pools for choice in plan.choices):
        for row, choice in zip(rows, plan.choices, strict=True):
            row["prefill"], row["decode"] = choice.pools or (None, None)
    return rows


#: Columns that are called as in a choice: those before its flags, and the last ones.
_FIRST_COLUMNS = ("gpus", "cost_per_hour", "cost_per_million_output_tokens", "replicas", "engine",
                  "gpu", "gpus_per_replica")  # fmt: skip
_LAST_COLUMNS = ("limited_by", "chance", "safe", "serve_command", "simulate_command")


def _row(place: int, c: Choice) -> dict[str, object]:
    low, high = c.fleet_rate.interval_per_s or (None, None)
    seeds = c.highest_rate.seeds_per_s
    return {
        "rank": place,
        **{name: getattr(c, name) for name in _FIRST_COLUMNS},
        **c.flags,
        **{f"format_{part}": name for part, name in c.formats.items()},
        "coefficients": c.coefficients,
        "highest_rate_per_s": c.highest_rate.per_s,
        "lowest_rate_that_fails_per_s": c.highest_rate.fails_per_s,
        "highest_rate_least_draw_per_s": min(seeds, default=None),
        "highest_rate_most_draw_per_s": max(seeds, default=None),
        "fleet_rate_per_s": c.fleet_rate.per_s,
        "fleet_rate_bad_end_per_s": low,
        "fleet_rate_good_end_per_s": high,
        "utilization": c.utilization,
        "rate_per_replica_per_s": c.at_rate.rate_per_s,
        "met_share": c.seen.met_share,
        **{
            f"{metric}_{name}_s": value
            for metric, table in c.seen.latency_s.items()
            for name, value in table.items()
        },
        "output_tokens_per_gpu_s": c.seen.output_tokens_per_gpu_s,
        "user_tokens_per_s": c.seen.user_tokens_per_s,
        **{name: getattr(c, name) for name in _LAST_COLUMNS},
    }
