"""Public measurements: what a set's description makes of its file's rows."""

import numpy as np
import pandas as pd
import pytest

from pinn.errors import PinnError
from pinn.measurements.runs import public

DECODES = {
    "file": "decodes.csv",
    "set": "vLLM steps",
    "where": 'engine == "vllm"',
    "configuration": {"model": "Qwen/Qwen3-14B", "gpu": "H100-SXM", "engine_version": "0.20.0"},
    "of": {"tp": "gpus"},
    "batch": {"decode_requests": "batch", "decode_context": "tokens / batch"},
    "seconds": "step_ms / 1000",
}
LOADS = {
    "file": "sent.csv",
    "set": "points",
    "configuration": {"model": "Qwen/Qwen3-14B", "gpu": "H100-SXM"},
    "load": {"prompt_tokens": "isl", "output_tokens": "osl", "rate": "rate", "requests": "n"},
    "figures": {"ttft_mean_s": "ttft_ms / 1000", "itl_mean_s": "tpot_ms / 1000"},
}
POINTS = {
    "file": "points.csv",
    "set": "points",
    "of": {"model": "model", "gpu": "gpu", "engine_version": "version"},
    "load": {"prompt_tokens": "isl", "output_tokens": "osl"},
}


@pytest.fixture
def sets(tmp_path, monkeypatch):
    """Takes descriptions, and tables by file name, and gives the folder of the files."""

    def write(steps=(), loads=(), **tables):
        for name, rows in tables.items():
            pd.DataFrame(rows).to_csv(tmp_path / f"{name}.csv", index=False)
        described = public.yaml.safe_dump({"steps": list(steps), "loads": list(loads)})
        (tmp_path / "sets.yaml").write_text(described)
        monkeypatch.setattr(public, "data_folder", lambda _: tmp_path)
        return [tmp_path]

    return write


def decodes(batches, gpus=1, engine="vllm"):
    rows = [(engine, gpus, batch, 1000.0 * batch, 10.0 + batch) for batch in batches]
    return pd.DataFrame(rows, columns=["engine", "gpus", "batch", "tokens", "step_ms"])


def test_steps_are_medians_of_kinds_by_deployment(sets):
    noisy = decodes([4, 4, 4]).assign(step_ms=[10.0, 12.0, 99.0])
    table = pd.concat([noisy, decodes([8], gpus=2), decodes([8], engine="sglang")])
    found, (report,) = public.read_public_steps(sets([DECODES], decodes=table))
    one, two = (each.measured for each in found)
    assert one.deployment.serving.tensor_parallel_size == 1
    assert two.deployment.serving.tensor_parallel_size == 2
    assert one.seconds.tolist() == [0.012]
    assert one.count.tolist() == [3]
    assert one.batches.decode_context.tolist() == [1000.0]
    assert (report.read, report.accepted) == (5, 4)
    assert sum(report.refused.values()) == 1
    assert all(each.is_held_out for each in found)


def test_half_of_the_batch_sizes_are_held_out(sets):
    sizes = [1, 2, 4, 8, 16, 32]
    found, _ = public.read_public_steps(
        sets([DECODES | {"held_out": "half"}], decodes=decodes(sizes))
    )
    held_out, training = found
    assert (held_out.is_held_out, training.is_held_out) == (True, False)
    assert held_out.source() == training.source() == "vLLM steps, half held out"
    halves = [sorted(each.measured.batches.decode_requests.tolist()) for each in found]
    assert sorted(halves[0] + halves[1]) == sizes
    assert len(halves[0]) == len(halves[1]) == 3


def test_a_load_is_a_run_of_one_stage(sets):
    row = {"isl": 512, "osl": 64, "rate": 4.0, "n": 400, "ttft_ms": 50.0, "tpot_ms": 12.0}
    ((one,), _) = public.read_public_runs(sets(loads=[LOADS], sent=[row]))
    assert one.run.measured == {"all": {"ttft_mean_s": 0.05, "itl_mean_s": 0.012}}
    assert len(one.run.workload.prompt_tokens) == pytest.approx(400, rel=0.2)
    assert np.all(one.run.workload.prompt_tokens == 512)


def test_a_point_has_the_flags_of_its_text_and_one_run_for_each_load(sets):
    about = {"id": "P1", "model": "Qwen/Qwen3-14B", "gpu": "H100 (assumed)", "version": "unknown"}
    about |= {"flags": "enforce_eager; max_num_seqs 30; prompts may repeat", "isl": 64, "osl": 8}
    figures = [("ttft_ms", 20.0), ("tpot_p50_ms", 7.0)]
    rows = [about | {"load": "concurrency 2", "measured_metric": m, "measured": v}
            for m, v in figures]  # fmt: skip
    rows.append(rows[0] | {"load": "rate 3"})
    found, _ = public.read_public_runs(sets(loads=[POINTS], points=rows))
    closed, open_ = (one.run for one in found)
    assert closed.measured["all"] == {"ttft_mean_s": 0.02, "itl_mean_s": 0.007}
    assert closed.workload.concurrency == 2
    assert open_.workload.concurrency is None
    serving = closed.deployment.serving
    assert serving.enforce_eager
    assert serving.max_num_seqs == 30


def test_a_figure_that_nobody_simulates_is_refused(sets):
    odd = LOADS | {"figures": {"tokens_per_s": "ttft_ms"}}
    row = {"isl": 512, "osl": 64, "rate": 4.0, "n": 400, "ttft_ms": 50.0}
    with pytest.raises(PinnError, match="the metrics tokens_per_s are unknown: use"):
        public.read_public_runs(sets(loads=[odd], sent=[row]))


def test_a_folder_that_is_not_there_is_named(sets, tmp_path):
    sets([DECODES])
    with pytest.raises(
        PinnError, match=r"the folder .*/elsewhere does not exist: give a folder of public"
    ):
        public.read_public_steps([tmp_path / "elsewhere"])


def test_sets_whose_file_is_not_there_are_passed_over(sets):
    assert public.read_public_steps(sets([DECODES])) == ([], [])
