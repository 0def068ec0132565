"""Rewrite the generated parts of README.md and docs: ``python scripts/update_docs.py``.

Each part is between ``<!-- begin NAME -->`` and ``<!-- end -->``: the output of a command with the
checkpoint in the repository, or a table of declarations in the code. The part about calibration
requires the public step summaries; it remains unchanged unless PINN_STEPS_DIR is their folder. With
``--scores``, the script also writes the scores on other engines' rows, on P/D, on speculation and
on decisions, which takes three more minutes. With ``--plans``, it also reruns the plans in
docs/plan.md and docs/plan_disaggregated.md, which takes three more minutes. The figure on the
site's first page is also drawn.
"""

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from textwrap import wrap

import draw_held_out
import pandas as pd
import score_disaggregated
import typer
from page_parts import write_part
from typer.testing import CliRunner

from pinn.cli.main import app
from pinn.common import old_names
from pinn.common.files import data_folder, file_sha256, read_rows
from pinn.common.screen import Grid
from pinn.evaluation.engines import networks
from pinn.evaluation.scorecard import scorecard, scorecard_grid
from pinn.evaluation.serving_runs import HELD_OUT, NETWORK
from pinn.evaluation.tables import DECISIONS_CAPTION
from pinn.simulator.metric_features import WHOLE_RUN
from pinn.surrogate.checkpoint import load_checkpoint
from pinn.surrogate.featurizer import DESCRIPTORS, RATES
from pinn.surrogate.network import CoefficientNetwork
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.surrogate.uncertainty.intervals import read_calibration
from pinn.training.data.released import PEERS

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PLAN_PAGES = (ROOT / "docs" / "plan.md", ROOT / "docs" / "plan_disaggregated.md")
CHECKPOINTS = ROOT / "checkpoints"
REPORT = "pinn coefficients --model Qwen/Qwen3-30B-A3B --gpu H100 --tensor-parallel-size 2"
ACCOUNT = (
    "pinn breakdown --model meta-llama/Llama-3.1-70B --gpu H200 --tensor-parallel-size 4 "
    "--explain --batch '1 prefill 1024 @ 0 + 64 decode @ 2000'"
)
SIMULATE = (
    "pinn simulate --model meta-llama/Llama-3.1-8B --gpu H100 --max-num-batched-tokens 2048 "
    "--workload load.yaml --sensitivity e2e_mean_ms"
)
LOAD = """prompt_tokens: 1024
output_tokens: 256
stages: [{rate: 8, duration: 300}, {rate: 16, duration: 300}]
groups: 10                 # 10 x 20 prompts that repeat, half of each shared by its group
prompts_per_group: 20
shared_tokens: 512
"""
COEFFICIENTS_SHOWN = 6
WIDTH = 100
SERVED = "--model codellama/CodeLlama-34b-Instruct-hf --gpu H100 --tensor-parallel-size 2"


def run(command: str, columns: int = WIDTH, statuses: tuple[int, ...] = (0,)) -> str:
    """Return the output of a ``pinn`` command on a terminal of ``columns`` columns.

    Raises:
        SystemExit: If the exit status is not one of ``statuses``.
    """
    env = {"PINN_CHECKPOINT": str(CHECKPOINTS / "pinn.safetensors"), "COLUMNS": str(columns)}
    result = CliRunner().invoke(app, shlex.split(command)[1:], env=env)
    if result.exit_code not in statuses:
        raise SystemExit(f"the command '{command}' failed: {result.output}")
    return "\n".join(line.rstrip() for line in result.stdout.strip().splitlines())


def table(text: int, rows: Iterable[Iterable[str]], *headings: str) -> str:
    """Return rows as a Markdown table whose first ``text`` columns contain text."""
    grid = Grid.of(*headings, text=text)
    for row in rows:
        grid.add(*row)
    return grid.markdown()


def held_out() -> str:
    """Return a table of errors of this and other estimators, one row per type of held-out data."""
    results = pd.read_csv(CHECKPOINTS / "pinn.results.csv").query("held_out == 'all'")
    found = results.set_index(["split", "metric", "method"]).sort_index()
    shown = []
    for split, metric, what, figure in _SHOWN:
        rows = found.loc[(split, metric)]
        cells = (
            f"{rows.loc[m, 'median']:.1f} / {rows.loc[m, 'mean']:.1f}" if m in rows.index else ""
            for m in (NETWORK, *PEERS, "roofline")
        )
        shown.append((what, figure, str(rows.loc[NETWORK, "n"]), *cells))
    methods = ("pinn", "AIConfigurator 0.12", "AISimulate 0.13", "roofline")
    return table(2, shown, "held out", "predicted", "n", *methods)


def card() -> str:
    """Return a table of facts about the shipped checkpoint."""
    path = CHECKPOINTS / "pinn.safetensors"
    found = load_checkpoint(path)
    settings, about = found.network.settings, found.metadata
    parameters = CoefficientNetwork.from_weights(found.network).parameter_count
    rows = (
        ("file", "`checkpoints/pinn.safetensors`"),
        ("SHA-256", f"`{file_sha256(path)}`"),
        ("trained", f"{about['date']} by `python train.py +experiment={about['experiment']}`"),
        (
            "recipe, data (SHA-256)",
            f"`{about['recipe_sha256'][:16]}`, `{about['data_sha256'][:16]}`",
        ),
        ("parameters", f"{parameters:,} in float64"),
        ("inputs", f"{len(DESCRIPTORS)} descriptors, {len(RATES)} datasheet rates"),
        ("hidden layers", f"{settings.depth} of {settings.hidden} units, SiLU"),
        ("outputs", f"{len(STEP_FEATURES)} betas, {len(REQUEST_FEATURES)} alphas"),
        ("licence", "Apache-2.0"),
    )
    return table(2, rows, "fact", "value")


_RUNS = "serving runs, leave-one-model-out"
_SHOWN = (
    ("leave-one-model-out", "tpot", "model", "TPOT"),
    ("leave-one-model-out", "ttft", "model", "TTFT"),
    ("leave-one-gpu-and-its-kernels-out", "tpot", "GPU and its kernels", "TPOT"),
    (_RUNS, "e2e_mean", "model, serving runs", "E2E latency"),
    (_RUNS, "ttft_mean", "model, serving runs", "TTFT"),
)


def folded(command: str) -> str:
    """Return a command with line breaks before options that do not fit on the line."""
    lines = [command]
    while len(lines[-1]) > WIDTH - 6:
        cut = lines[-1].rindex(" --", 0, WIDTH - 6)
        lines[-1:] = [lines[-1][:cut], lines[-1][cut + 1 :]]
    return " \\\n    ".join(lines)


def shown(command: str) -> str:
    """Run a ``pinn`` command, and return a Markdown code block with the command and its output."""
    return f"```\n$ {folded(command)}\n{run(command)}\n```"


def run_on(load: str, command: str, columns: int = WIDTH) -> str:
    """Run a command in a folder with the load as ``load.yaml``, and return its output."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("load.yaml").write_text(load)
        return run(command, columns)


def simulation() -> str:
    """Return a workload, a command that simulates it, and the output up to a few coefficients."""
    printed = run_on(LOAD, SIMULATE).splitlines()
    lines = [part for line in printed for part in wrap(line, WIDTH, break_on_hyphens=False)]
    table = next(i for i, line in enumerate(lines) if "coefficient" in line)
    shown = "\n".join([*lines[: table + 1 + COEFFICIENTS_SHOWN], "..."])
    return f"```\n$ cat load.yaml\n{LOAD}$ {folded(SIMULATE)}\n{shown}\n```"


def intervals() -> str:
    """Return a table of coverage and width of prediction intervals on held-out models and GPUs."""
    found = read_calibration(CHECKPOINTS / "pinn.safetensors")
    cells: dict[tuple[str, str, str], list[str]] = {}
    for row in found.coverage:
        shares = f"{100 * row['coverage']:.0f} / {100 * row['median_width']:.0f}"
        cells.setdefault((row["split"], row["name"], str(row["n"])), []).append(shares)
    rows = ((*key, *shares) for key, shares in cells.items())
    return table(2, rows, "held out", "name", "rows", "TPOT", "TTFT", "E2E")


def serving_runs() -> str:
    """Return a table of measured values and errors for every stage of the serving runs."""
    path = CHECKPOINTS / "pinn.serving_runs.csv"
    runs = pd.read_csv(path, dtype={"stage": str})
    runs["method"] = old_names.current_texts(runs["method"], old_names.METHODS, path.name)
    means = ["e2e_mean_s", "ttft_mean_s", "itl_mean_s"]
    tails = ["e2e_p90_s", "e2e_p99_s"]
    shown = []
    for _, rows in runs[runs["stage"] != WHOLE_RUN].groupby(["run", "stage"], sort=False):
        about = rows.iloc[0]
        measured = rows.drop_duplicates("figure").set_index("figure")["measured_s"]
        errors = rows.set_index(["method", "figure"])["error_percent"]
        cells = [" ".join(f"{1e3 * measured[figure]:.4g}" for figure in means)]
        for method, figures in product((NETWORK + HELD_OUT, NETWORK), (means, tails)):
            cells.append(" ".join(f"{errors[method, figure]:+.1f}" for figure in figures))
        shown.append((about["model"], about["load"], f"{about['rate_per_s']:g}", *cells))
    return table(
        2, shown, "model", "load", "req/s", "E2E, TTFT, ITL ms", "held out: E2E, TTFT, ITL",
        "E2E p90, p99", "trained on: E2E, TTFT, ITL", "E2E p90, p99",
    )  # fmt: skip


def beta() -> str:
    features = STEP_FEATURES.values()
    units = ("x datasheet time" if f.unit == "1" else f.unit for f in features)
    rows = ((f"`{f.name}`", unit, f.meaning) for f, unit in zip(features, units, strict=True))
    return table(3, rows, "feature", "unit of beta", "what it measures")


def alpha() -> str:
    rows = ((f"`{f.name}`", f.unit, f"{f.prior:g}", f.source) for f in REQUEST_FEATURES.values())
    return table(4, rows, "feature", "unit of alpha", "prior", "what it rests on")


def calibration(steps: Path) -> str:
    """Return a table of errors after calibration to public step summaries, by interval type."""
    path = next(steps.glob("*codellama*.parquet"))
    rows = ["| fitted to | evaluated on | median APE (%) before | after |", "|---|---|---:|---:|"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(f"pinn ingest steps {path} -o {folder}/run {SERVED}")
        for kind, more in (("windows", ""), ("singles", "--budget 0 ")):
            out = folder / f"{kind}.json"
            command = (
                f"pinn calibrate --observations {folder}/run --intervals {kind} {more}-o {out}"
            )
            # Status 1: the held-out error does not improve, so that no file is written.
            rows.append(f"| {_last_errors(run(command, statuses=(0, 1)), kind)}")
    return "\n".join(rows)


def _last_errors(printed: str, kind: str) -> str:
    """Return a table row with a calibration's errors on the last 20 % of the recorded time."""
    used = re.search(r"fitted to ([\d,]+) intervals", printed)
    last = re.search(rf"last 20 %, {kind} +([\d,]+) +([\d.]+) +([\d.]+)", printed)
    if used is None or last is None:
        raise SystemExit(f"pinn calibrate prints no errors of {kind}: {printed}")
    n, before, after = last.groups()
    return f"{used[1]} {kind} | {n} {kind} of the last 20 % of time | {before} | {after} |"


def memory_errors() -> str:
    """Return a table of half-widths of KV memory intervals, by deployment type."""
    rows = read_rows(data_folder("engines") / "memory_errors.csv")
    shown = [(row["kind"], row["start_ups"], row["half_percent"]) for row in rows]
    return table(1, shown, "kind", "logs", "± % of visible memory")


def printed_from(start: str, command: str) -> str:
    """Return a command's output from the text ``start`` on."""
    printed = run(command)
    return printed[printed.index(start) :].strip()


def disaggregated() -> str:
    """Return the table of TPOT and TTFT errors on disaggregated (P/D) servers."""
    rows, _ = score_disaggregated.read_disaggregated()
    return score_disaggregated.pools_table(score_disaggregated.score_pools(rows, networks()))


def decisions() -> str:
    """Return the table of losses from choosing held-out deployments by predictions."""
    table, _, _ = run("pinn evaluate decisions").partition(f"\n{DECISIONS_CAPTION[:40]}")
    small = "<!-- in small: evaluate decisions -> evaluate decisions few.csv -->"
    return f"{small}\n```\n$ pinn evaluate decisions\n{table}\n```"


PARTS: dict[str, Callable[[], str]] = {
    "first-answer": lambda: shown(REPORT),
    "site-answer": lambda: shown(REPORT),
    "held-out": held_out,
    "card": card,
    "tpot": lambda: run("pinn results --markdown"),
    "ttft": lambda: run("pinn results --metric ttft --models-only --markdown"),
    "measured": lambda: run("pinn results --measured --markdown"),
    "report": lambda: shown(REPORT),
    "recipe": lambda: shown(f"{REPORT} --recipe"),
    "betas": lambda: shown(f"{REPORT} --betas"),
    "intervals": intervals,
    "simulate": simulation,
    "memory": lambda: shown(f"{REPORT} --memory"),
    "memory-errors": memory_errors,
    "breakdown": lambda: shown(ACCOUNT),
    "serving-runs": serving_runs,
    "scorecard": lambda: scorecard_grid(scorecard(CHECKPOINTS / "pinn.safetensors")).markdown(),
    "kernels": lambda: run("pinn kernels errors"),
    "beta": beta,
    "alpha": alpha,
}
if "PINN_STEPS_DIR" in os.environ:
    PARTS["calibration"] = lambda: calibration(Path(os.environ["PINN_STEPS_DIR"]))


#: Functions by name, for generated parts that take minutes to compute. The counts above the tables
#: in these parts do not depend on the checkpoint.
SCORES: dict[str, Callable[[], str]] = {
    "engines": lambda: printed_from(
        "measured deployments, model held out", "pinn evaluate engines"
    ),
    "disaggregated": disaggregated,
    "speculation": lambda: printed_from("\n|", "pinn evaluate speculation"),
    "decisions": decisions,
}

#: Pattern of a plan on a docs page: the load, the command, and the output.
_PLAN = re.compile(r"\$ cat load\.yaml\n(.*?)\n\n(\$ pinn plan .*?[^\\]\n).*?```", re.S)


def typed_plan(block: re.Match[str]) -> str:
    """Return a plan's block of a page, with the new output of its command."""
    load, typed = block.groups()
    printed = run_on(load, typed.replace("\\\n", "").removeprefix("$ "), columns=200)
    return f"$ cat load.yaml\n{load}\n\n{typed}{printed}\n```"


def main(scores: bool = False, plans: bool = False) -> None:
    """Compute all generated parts, then write each part into its page."""
    made = {name: make() for name, make in (PARTS | (SCORES if scores else {})).items()}
    for name, part in made.items():
        write_part(PAGES, name, part)
    for page in PLAN_PAGES if plans else ():
        page.write_text(_PLAN.sub(typed_plan, page.read_text()))
    draw_held_out.main()


if __name__ == "__main__":
    typer.run(main)
