"""From a file to a folder of tables and back to the truth that wrote it."""

import json
import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from trace_runs import TRUE_COEFFICIENTS, engine_run, lines_of
from typer.testing import CliRunner

from pinn.cli.ingest import app as ingest_app
from pinn.common.files import file_sha256
from pinn.errors import PinnError
from pinn.measurements.traces.batches import context_estimate
from pinn.measurements.traces.cycles import accounting, medians_by_decodes
from pinn.measurements.traces.ingestion import ingest_steps, ingest_vllm
from pinn.measurements.traces.interval_batches import IntervalBatches, temporal_split
from pinn.measurements.traces.trace_tables import Target, TraceTables, read_trace_tables
from pinn.physics.batch_sums import sum_batches
from pinn.specs.serving import ServingSpec

LLAMA = Target("meta-llama/Llama-3.1-8B", "H100", ServingSpec(max_num_batched_tokens=2048))


def write(folder: Path, **options: object) -> Path:
    run = engine_run(options.pop("requests", 150), blocks=options.pop("blocks", 20_000))  # type: ignore[arg-type]
    path = folder / "traces.json"
    path.write_text("".join(line + "\n" for line in lines_of(run, **options)))
    return path


def fitted(tables: TraceTables, rows: np.ndarray) -> np.ndarray:
    """Least squares on intervals, relative to the engine's true coefficients."""
    batches = IntervalBatches(tables, tables.deployment()).of(rows)
    sums, weight = batches.sums, batches.weight
    columns = (
        np.ones_like(weight),
        sums.requests,
        sums.tokens,
        sums.decode_context - sums.decode_requests + sums.prefill_cached,
    )
    matrix = np.stack(
        [np.bincount(batches.owner, weights=weight * c, minlength=len(rows)) for c in columns],
        axis=1,
    )
    cycles = tables.cycles.iloc[rows]
    seconds = cycles["step_s"].to_numpy() * cycles["steps"].to_numpy(float)
    return np.linalg.lstsq(matrix, seconds, rcond=None)[0] / np.array(TRUE_COEFFICIENTS)


def test_known_intervals_give_back_the_engine(tmp_path: Path) -> None:
    """Sampling at 10 %, late output events and preemptions: windows stay exact."""
    path = write(tmp_path, requests=500, blocks=420, output_lag_steps=1)
    tables = ingest_vllm(path, tmp_path / "out", LLAMA)
    counts = accounting(tables.cycles)
    assert counts["set aside: preemption"] > 10
    known = (tables.cycles["batches"] == "known") & tables.cycles["set_aside"].isna()
    assert known.sum() > 200
    assert fitted(tables, np.flatnonzero(known)) == pytest.approx(1, rel=1e-6)


def test_every_level_of_knowledge_tells_the_same_batch(tmp_path: Path) -> None:
    run = engine_run(150)
    path = write(tmp_path, step_sampling=0.5, snapshot_sampling=0.3)
    tables = ingest_vllm(path, tmp_path / "out", LLAMA)
    knowledge = tables.steps["knowledge"].to_numpy()
    assert set(knowledge) == {"snapshot", "journey"}
    rows = np.arange(len(tables.steps))
    truth = sum_batches([run.steps[i - 1].batch for i in tables.steps["step_id"]])
    found = IntervalBatches(tables, tables.deployment()).of_steps(rows)
    for f in fields(truth):
        assert getattr(found, f.name) == pytest.approx(getattr(truth, f.name)), f.name


def test_without_journeys_windows_are_estimates_with_the_right_totals(tmp_path: Path) -> None:
    path = write(tmp_path, journey_sampling=0.0)
    tables = ingest_vllm(path, tmp_path / "out", LLAMA)
    assert set(tables.steps["knowledge"]) == {"aggregate"}
    good = np.flatnonzero(tables.cycles["set_aside"].isna())
    batches = IntervalBatches(tables, tables.deployment()).of(good)
    steps = tables.cycles["steps"].to_numpy(float, na_value=np.nan)[good]
    assert np.bincount(batches.owner, weights=batches.weight) == pytest.approx(steps)
    rows = np.arange(len(tables.steps))
    sums = IntervalBatches(tables, tables.deployment()).of_steps(rows)
    assert sums.prefill_tokens == pytest.approx(tables.steps["prefill_tokens"].to_numpy())
    assert sums.decode_requests == pytest.approx(tables.steps["decode_requests"].to_numpy())


def test_partly_sampled_journeys_are_not_taken_for_all(tmp_path: Path) -> None:
    path = write(tmp_path, journey_sampling=0.5)
    tables = ingest_vllm(path, tmp_path / "out")
    assert (tables.steps["knowledge"] == "aggregate").all()
    assert (tables.cycles["batches"] != "known").all()


def test_context_estimate_is_close_without_shared_blocks(tmp_path: Path) -> None:
    run = engine_run(150)
    tables = ingest_vllm(write(tmp_path, step_sampling=1.0), tmp_path / "out")
    estimate = context_estimate(tables.steps, 16)
    truth = np.array(
        [
            np.mean([p.cached_tokens + p.new_tokens for p in run.steps[i - 1].parts])
            for i in tables.steps["step_id"]
        ]
    )
    assert np.median(np.abs(estimate / truth - 1)) < 0.02


def test_requests_meet_the_state_of_the_step_before(tmp_path: Path) -> None:
    tables = ingest_vllm(write(tmp_path, step_sampling=1.0), tmp_path / "out")
    requests = tables.requests.to_pandas()
    assert requests["segment"].notna().all()
    assert requests["state_age_s"].dropna().between(0, 0.05).mean() > 0.9
    met = requests["state_step_s"].dropna()
    assert met.between(0.008, 0.02).all()


def test_two_servers_in_one_file(tmp_path: Path) -> None:
    run = engine_run(60)
    options = [
        {"service": (("service.name", "a"),), "seed": 1},
        {"service": (("service.name", "b"),), "seed": 2, "monotonic_ns": 77_000_000_000},
    ]
    first, second = (lines_of(run, **o) for o in options)
    mixed = [line for pair in zip(first, second, strict=False) for line in pair]
    path = tmp_path / "traces.json"
    path.write_text("\n".join(mixed) + "\n")
    tables = ingest_vllm(path, tmp_path / "out")
    assert len(tables.manifest["servers"]) == 2
    assert len(tables.manifest["segments"]) == 2
    assert tables.cycles["step_s"].dropna().between(0.008, 0.02).all()
    by_segment = tables.requests.to_pandas().groupby("segment")["server"].nunique()
    assert by_segment.tolist() == [1, 1]


def test_a_failed_ingestion_leaves_the_old_tables(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ingest_vllm(write(tmp_path, requests=30), out)
    before = (out / "manifest.json").read_bytes()
    bad = tmp_path / "bad.json"
    bad.write_text("nothing\n")
    with pytest.raises(PinnError, match="has no events"):
        ingest_vllm(bad, out)
    assert (out / "manifest.json").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(PinnError, match="is not a folder of trace tables"):
        ingest_vllm(tmp_path / "traces.json", tmp_path / "mine")


def test_tables_that_were_cut_off_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ingest_vllm(write(tmp_path, requests=30), out)
    (out / "steps.parquet").write_bytes(b"PAR1")
    with pytest.raises(PinnError, match=r"steps.parquet was changed .*: ingest the traces again"):
        _ = read_trace_tables(out).steps
    (out / "steps.parquet").unlink()
    with pytest.raises(PinnError, match=r"steps.parquet cannot be read .*: ingest"):
        _ = read_trace_tables(out).steps
    with pytest.raises(PinnError, match=r"none has no trace tables: write .* 'pinn ingest'"):
        read_trace_tables(tmp_path / "none")
    with pytest.raises(PinnError, match=r"no model and GPU: ingest .* with --model and --gpu"):
        read_trace_tables(out).deployment()


def test_a_table_with_a_changed_value_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    table = ingest_vllm(write(tmp_path, requests=30), out).table("requests")
    path = out / "requests.parquet"
    columns = table.column_names
    tokens = pc.add(table["prompt_tokens"], 1)
    pq.write_table(table.set_column(columns.index("prompt_tokens"), "prompt_tokens", tokens), path)
    assert pq.read_metadata(path).num_rows == table.num_rows
    expected = read_trace_tables(out).manifest["tables"]["requests"]["sha256"]
    with pytest.raises(PinnError) as raised:
        read_trace_tables(out).table("requests", ["prompt_tokens"])
    assert f"SHA-256 is {file_sha256(path)[:12]}..., but {expected[:12]}..." in str(raised.value)


def public_steps() -> Path:
    folder = os.environ.get("PINN_STEPS_DIR")
    if not folder:
        pytest.skip("PINN_STEPS_DIR names no folder with step summaries")
    return next(Path(folder).glob("*codellama*.parquet"))


def test_public_steps_are_all_accounted_for(tmp_path: Path) -> None:
    path = public_steps()
    rows = len(pd.read_parquet(path))
    serving = ServingSpec(tensor_parallel_size=2, max_num_batched_tokens=2048)
    target = Target("codellama/CodeLlama-34b-Instruct-hf", "H100", serving)
    tables = ingest_steps(path, tmp_path / "out", target)
    assert tables.manifest["reports"]["rows"]["accepted"] == rows
    assert len(tables.steps) == rows
    assert sum(accounting(tables.cycles).values()) == rows
    medians = medians_by_decodes(tables.steps, tables.cycles).set_index("decode_requests")
    assert medians.loc[27, "median_step_s"] == pytest.approx(0.0148, rel=0.02)
    targets = tables.manifest["targets"]
    assert targets["step_s"]["is_target"]
    assert not targets["reported_duration_s"]["is_target"]
    assert targets["reported_duration_s"]["below_floor"] > 0.97 * rows
    train, _, test = temporal_split(tables.cycles)
    singles = (tables.cycles["kind"] == "single").to_numpy()
    assert (singles[train].sum(), singles[test].sum()) == (463, 123)


def test_the_command_line_reads_traces(tmp_path: Path) -> None:
    path = write(tmp_path, requests=30, step_sampling=1.0)
    result = CliRunner().invoke(
        ingest_app,
        ["vllm", str(path), "-o", str(tmp_path / "out"), "--model", "meta-llama/Llama-3.1-8B",
         "--gpu", "H100", "--max-num-batched-tokens", "2048"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "REFUSED" in result.output
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["deployment"]["serving"]["max_num_batched_tokens"] == 2048
    manifest["deployment"]["cluster"] = "a"
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PinnError, match=r"cluster.*: ingest the traces again"):
        read_trace_tables(tmp_path / "out").deployment()
