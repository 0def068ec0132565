"""Measured steps calibrate a server; the design narrows the asked loads first."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from assumed_priors import prior_coefficients
from benchmark_files import vllm_bench
from measured_folder import measured
from one_screen import assert_one_screen
from score_measuring import drawn, score
from served_load import served
from typer.testing import CliRunner

from pinn.api.calibration import calibrate
from pinn.api.measuring import engine_arguments
from pinn.calibration.measuring import AskedLoad, deployment_limits, design, load_features
from pinn.calibration.prior import Start, assumed_prior
from pinn.cli.main import app
from pinn.errors import PinnError
from pinn.measurements.program import session, table
from pinn.measurements.program.batches import short_list
from pinn.measurements.traces import measured_steps, step_table
from pinn.measurements.traces.measured_steps import read_measured_steps, typed_flags
from pinn.simulator.linear_latency import LinearLatency
from pinn.surrogate.coefficient_set import read_coefficient_set


@pytest.fixture(scope="module")
def steps(tmp_path_factory, checkpoint_path):
    """A folder of steps of a server whose steps take 20 % longer than the network says."""
    from pinn.measurements.traces.trace_tables import Target
    from pinn.specs.serving import ServingSpec

    deployment = Target("meta-llama/Llama-3.1-8B", "H100", ServingSpec()).deployment()
    start = Start(None, None, checkpoint_path)
    beta = start.coefficients(deployment).beta
    folder = tmp_path_factory.mktemp("measured") / "steps"
    measured(folder, deployment, 1.2 * beta, short_list(deployment_limits(deployment)), 120.0)
    return folder


def run(*words, checkpoint):
    return CliRunner().invoke(
        app, [str(w) for w in words], env={"PINN_CHECKPOINT": str(checkpoint)}
    )


def test_a_calibration_finds_what_the_steps_take(steps, checkpoint_path, tmp_path):
    out = tmp_path / "server.json"
    result = run("calibrate", "--steps", steps, "-o", out, checkpoint=checkpoint_path)
    assert result.exit_code == 0, result.output
    assert "skipped: cold" in result.output
    assert_one_screen(result.stdout)
    assert "each fifth of the batches, held out" in result.output
    found = read_coefficient_set(out)
    before = found.base.beta[0]
    deployment = read_measured_steps(steps).target(None, None, {}).deployment()
    limits = deployment_limits(deployment)
    asked = load_features(deployment, [AskedLoad(16, 1000, 200)], limits, before)
    np.testing.assert_allclose(asked @ found.beta, 1.2 * (asked @ before), rtol=0.02)


def write_loads(folder, factor, checkpoint_path):
    """Files of a load generator, of a server whose steps take so many times the network's."""
    folder.mkdir()
    start = Start(None, None, checkpoint_path)
    for clients in (4, 16, 32):
        of = served(
            lambda d: LinearLatency(d, factor * start.coefficients(d).beta,
                                    start.coefficients(d).alpha),
            clients, requests=6 * clients,
        )  # fmt: skip
        (folder / f"{clients}.json").write_text(json.dumps(vllm_bench(of)))


@pytest.fixture(scope="module")
def served_steps(steps, tmp_path_factory, checkpoint_path):
    """Return the calibration with a server of those steps, whose steps take another 15 % longer."""
    folder = tmp_path_factory.mktemp("served") / "steps"
    shutil.copytree(steps, folder)
    write_loads(folder / "serving", 1.15 * 1.2, checkpoint_path)
    return folder


def test_what_a_server_adds_is_learned_beside_its_steps(served_steps, checkpoint_path, tmp_path):
    out = tmp_path / "server.json"
    result = run("calibrate", "--steps", served_steps, "-o", out, checkpoint=checkpoint_path)
    assert result.exit_code == 0, result.output
    assert "each fifth of the batches, held out" in result.output
    assert "each load, held out" in result.output
    # The server's flags take a second line, and the note on training data another.
    assert_one_screen(result.stdout, more=2)
    measured_ = read_measured_steps(served_steps)
    deployment = measured_.target(None, None, {}).deployment()
    before = Start(None, None, checkpoint_path).coefficients(deployment).beta
    limits = deployment_limits(deployment)
    asked = load_features(deployment, [AskedLoad(16, 512, 64)], limits, before)
    written = read_coefficient_set(out)
    found = written.beta
    np.testing.assert_allclose(written.base.beta[0], before)
    assert written.calibration["steps"]["used"] == len(measured_)
    np.testing.assert_allclose(asked @ found, 1.38 * (asked @ before), rtol=0.03)
    same = calibrate(steps=served_steps, checkpoint=checkpoint_path)
    np.testing.assert_allclose(same.fit.coefficients.beta, found, rtol=1e-9)
    assert "each load, held out" in str(same)


def test_a_calibration_goes_on_with_what_it_was_of(served_steps, checkpoint_path, tmp_path):
    """Files of a load generator name no GPU and no flags; the server has become slower since."""
    first, then = tmp_path / "a.json", tmp_path / "b.json"
    done = run("calibrate", "--steps", served_steps, "-o", first, checkpoint=checkpoint_path)
    assert done.exit_code == 0, done.output
    write_loads(tmp_path / "later", 1.6, checkpoint_path)
    words = ["calibrate", "--benchmarks", tmp_path / "later", "--force", "-o", then]
    without = run(*words, checkpoint=checkpoint_path)
    assert "give --gpu" in " ".join(without.output.split())
    result = run(*words, "--append", first, "--model", "Llama-3.1-8B", checkpoint=checkpoint_path)
    assert result.exit_code == 0, result.output
    assert "Before the calibration, TPOT was" in " ".join(result.stdout.split())
    assert_one_screen(result.stdout, more=3)  # the warning
    assert "drift in errors" in result.output


def test_ingested_steps_calibrate_to_the_same(steps, checkpoint_path, tmp_path):
    read = run("ingest", "steps", steps, "-o", tmp_path / "run", checkpoint=checkpoint_path)
    assert read.exit_code == 0, read.output
    assert "accepted" in read.output
    for name, words in (("a", ["--steps", steps]), ("b", ["--observations", tmp_path / "run"])):
        done = run("calibrate", *words, "-o", tmp_path / f"{name}.json", checkpoint=checkpoint_path)
        assert done.exit_code == 0, done.output
    a, b = (read_coefficient_set(tmp_path / f"{name}.json").beta for name in "ab")
    np.testing.assert_allclose(a, b, rtol=1e-9)


def test_steps_under_other_limits_are_refused(steps, checkpoint_path, tmp_path):
    words = ["calibrate", "--steps", steps, "-o", tmp_path / "x.json", "--max-num-seqs", "7"]
    result = run(*words, checkpoint=checkpoint_path)
    assert result.exit_code == 1
    assert "the measured engine ran with --max-num-seqs 1024, but the flags are 7" in result.output


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a,b\n1,2\n", "lacks the columns num_prefill_requests, .*it has only a, b"),
        ("run,{}\nx,1,8,0,0,0,5\ny,1,8,0,0,0,5\n", "steps of 2 runs"),
        ("dp_rank,{}\n0,1,8,0,0,0,5\n1,1,8,0,0,0,5\n", "data-parallel ranks"),
        ("batch,{}\n0,1,8,0,0,0,5\n", "batch with fewer than 3 usable steps"),
        (
            "{}\n0,500,0,1,10,5\n1,0,0,0,0,5\n",
            "tokens without a request, or a prompt without tokens",
        ),
        ("batch,{}\n0,-1,8,0,0,0,5\n0,1,8.5,0,0,0,5\n", "a count is negative or a fraction"),
    ],
)
def test_tables_that_say_nothing_are_refused(tmp_path, text, error):
    names = ("num_prefill_requests,sum_prefill_tokens,sum_prefill_kv_tokens,num_decode_requests,"
             "sum_decode_kv_tokens,latency_ms")  # fmt: skip
    file = tmp_path / "steps.csv"
    file.write_text(text.format(names))
    with pytest.raises(PinnError, match=error):
        read_measured_steps(file)


def test_reader_and_program_agree():
    """The program stands alone, so that it cannot share these."""
    assert (measured_steps.STEPS_FILE, measured_steps.FACTS_FILE) == (
        table.STEPS_FILE, table.FACTS_FILE,
    )  # fmt: skip
    assert measured_steps.FAR == session.FAR


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max-model-len", "32k", "-q", "none"], {"max_model_len": 32_000}),
        (["-q", "modelopt"], {"precision": "modelopt"}),
        (["-cc.cudagraph_mode=PIECEWISE", "-O3"], {"cudagraph_mode": "PIECEWISE"}),
        (["--dtype", "float32", "--kv-cache-dtype", "bfloat16"], {"kv_cache_dtype": "bf16"}),
        (["--of-a-later-release", "a", "b", "-tp", "2"], {"tensor_parallel_size": 2}),
    ],
)
def test_what_an_engine_took_is_read_as_a_launch_command_is(words, expected):
    assert typed_flags(words) == expected


@pytest.mark.parametrize("text", ['{"limits": [1]}', '{"cards": ["H100"]}', "[]"])
def test_facts_of_another_shape_are_refused(tmp_path, text):
    names = ",".join([*step_table.COUNTS, step_table.LATENCY])
    (tmp_path / "steps.csv").write_text(f"{names}\n" + "1,8,0,0,0,5\n" * 3)
    (tmp_path / "machine.json").write_text(text)
    with pytest.raises(PinnError, match="not a file that 'pinn measure' wrote"):
        read_measured_steps(tmp_path)


def test_flags_go_to_the_engine_and_come_back():
    given = {"tensor_parallel_size": 2, "enable_prefix_caching": False, "enforce_eager": True,
             "kv_cache_dtype": "bf16", "precision": "fp8", "cudagraph_mode": "PIECEWISE",
             "fuse_all_reduce": False}  # fmt: skip
    assert "-cc.pass_config.fuse_allreduce_rms=false" in engine_arguments(given)
    assert typed_flags(engine_arguments(given)) == given
    assert typed_flags(["-tp=4", "--max_num_seqs", "8", "--unknown", "3"]) == {
        "tensor_parallel_size": 4, "max_num_seqs": 8,
    }  # fmt: skip
    with pytest.raises(PinnError, match="at start-up vLLM quantizes weights only to"):
        engine_arguments({"precision": "nvfp4"})


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--engine", "sglang"], "steps of sglang cannot be measured, because its scheduler"),
        (["-dp", "2"], "several data-parallel ranks"),
        (["--gpu", "H101"], "H101"),
        (["--engine-version", "0.10.2"], "vLLM 0.10.2 cannot be measured, only 0.15 and later"),
        (["--gpu", "L40S", "--model", "Llama-3.1-405B"], "measure anyway with --force"),
        (["--checkpoint", "nofile.safetensors"], "no checkpoint at"),
    ],
)
def test_what_cannot_be_measured_is_said_before_a_program_is_written(
    checkpoint_path, tmp_path, words, error
):
    file = tmp_path / "m.py"
    given = ["measure", "--model", "meta-llama/Llama-3.1-8B", "--script", file, *words]
    result = run(*given, checkpoint=checkpoint_path)
    assert result.exit_code != 0
    assert error in " ".join(result.output.split())
    assert not file.exists()


def test_a_script_has_its_design(checkpoint_path, tmp_path):
    file = tmp_path / "m.py"
    words = ["measure", "--model", "Llama-3.1-8B", "--gpu", "H100", "--load",
             "32x4000x300", "--script", file, "--max-num-seqs", "64", "--",
             "--seed", "3"]  # fmt: skip
    result = run(*words, checkpoint=checkpoint_path)
    assert result.exit_code == 0, result.output
    names: dict = {"__name__": "file"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    given = " ".join(names["ARGUMENTS"])
    assert given.startswith("--model meta-llama/Llama-3.1-8B --max-num-seqs 64 --seed 3")
    batches = [name for name, _ in names["DESIGN"]]
    assert "32 decode @ 4150" in batches
    assert len(batches) == len(set(batches)) > 50
    bad = run(*words[:6], "32x4000", "--script", file, checkpoint=checkpoint_path)
    assert "write CLIENTSxPROMPT_TOKENSxOUTPUT_TOKENS" in bad.output


def test_the_order_is_the_asked_loads_own(llama_8b_h100):
    mean = np.concatenate([prior_coefficients(1).beta[0], prior_coefficients(1).alpha[0]])
    prior = assumed_prior(mean)
    first = [design(llama_8b_h100, prior, 3.0, [AskedLoad(1, 500, 100)])[:8],
             design(llama_8b_h100, prior, 3.0, [AskedLoad(256, 500, 100)])[:8]]  # fmt: skip
    decodes = [max(batch.decodes for batch, _ in each) for each in first]
    assert decodes[0] < decodes[1]
    assert all(worth >= 0 for each in first for _, worth in each)


def test_coefficients_are_drawn_from_their_prior():
    mean = np.concatenate([prior_coefficients(1).beta[0], prior_coefficients(1).alpha[0]])
    prior = assumed_prior(mean)
    assert (drawn(prior, 0) >= prior.lower).all()
    assert not np.allclose(drawn(prior, 0), drawn(prior, 1))


def test_the_design_is_about_as_good_as_a_grid_and_random_batches(llama_8b_h100, tmp_path):
    """``scripts/score_measuring.py`` is the same with forty deployments and ten minutes."""
    of_seeds = [score("", llama_8b_h100, 0.02, i, tmp_path, minutes=(0.5,)) for i in range(2)]
    rows = pd.concat(of_seeds)
    width = rows.groupby("arm")["width"].mean()
    assert width["design"] < 0.5
    # Two seeds of half a minute: a grid is a quarter better here, random batches 3 %.
    assert width["design"] <= 1.25 * width["grid"]
    assert width["design"] <= 1.05 * width["random"]


def test_a_table_longer_than_a_piece_is_the_same_table(tmp_path, monkeypatch):
    """Pieces of some rows each: runs of equal steps go on from one to the next."""
    draw = np.random.default_rng(0)
    decodes = draw.integers(1, 9, 400).repeat(7)
    rows = [f"0,0,0,{n},{700 * n + i % 7},{5 + n + draw.normal(0, 0.1):.4f}" for i, n in
            enumerate(decodes)]  # fmt: skip
    rows[40], rows[41], rows[43] = "0,0,0,4,x,5", "0,0,0,4", "0,0,0,4,9,5,5"
    header = ",".join([*step_table.COUNTS, step_table.LATENCY])
    file = tmp_path / "steps.csv"
    file.write_text("\n".join([header, *rows, ""]))
    whole = read_measured_steps(file)
    monkeypatch.setattr(step_table, "_PIECE_BYTES", 500)
    pieces = read_measured_steps(file)
    assert pieces.rows.equals(whole.rows)
    assert pieces.report == whole.report
    assert dict(whole.report.refused) == {
        "a cell is missing or not a number": 2,
        "more cells than columns": 1,
    }
    assert whole.report.read == len(rows)
    assert len(whole) > 300


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", ["-inf", "inf", "-1e300", "-3000000000"])
def test_numbers_that_are_no_counts_are_refused_without_a_warning(number, tmp_path):
    header = ",".join([*step_table.COUNTS, step_table.LATENCY])
    rows = [f"0,0,0,4,{2800 + i},5.{i}" for i in range(9)]
    file = tmp_path / "steps.csv"
    file.write_text("\n".join([header, *rows, f"0,0,0,{number},2800,5", ""]))
    found = step_table.read_step_table(file)
    assert (found.read, len(found.milliseconds)) == (10, 9)
    assert sum(found.refused.values()) == 1


def test_a_table_without_rows_is_refused(tmp_path):
    file = tmp_path / "steps.csv"
    file.write_text(",".join([*step_table.COUNTS, step_table.LATENCY]) + "\n")
    with pytest.raises(PinnError, match="has no batch with enough steps for a median"):
        read_measured_steps(file)
