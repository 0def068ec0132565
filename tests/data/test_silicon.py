import pandas as pd
import pytest
from silicon_row import raw_row

from pinn.errors import PinnError
from pinn.measurements.deployments import silicon as sample
from pinn.training.data import silicon
from pinn.training.data.silicon import SERIES


@pytest.fixture(scope="module")
def clean():
    return silicon.read_silicon()


def read_rows(tmp_path, *changes):
    path = tmp_path / "silicon_sample.csv"
    pd.DataFrame([raw_row(id=f"r{i}", **change) for i, change in enumerate(changes)]).to_csv(path)
    return silicon.read_silicon(path)


def test_counts_of_the_installed_file(clean):
    """In the order of the filters."""
    rows, report = clean
    not_vllm, *filtered = report.refused.values()
    assert report.read == 5221
    assert report.read - not_vllm == 1328
    assert filtered == [165, 9, 254, 18, 3, 2, 39]
    assert report.accepted == len(rows) == 838
    assert {k: n for k, n in report.noted.items() if n} == {
        "known": 587, "likely": 241, "ambiguous": 10, "ambiguous: B200's script of that day": 10
    }  # fmt: skip


def test_what_is_left(clean):
    rows, _ = clean
    assert rows["row_id"].is_unique
    assert set(rows["gpu"]) == {"h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm"}
    assert rows["model"].value_counts().to_dict() == {
        "MiniMaxAI/MiniMax-M2.5": 341,
        "meta-llama/Llama-3.3-70B-Instruct": 220,
        "openai/gpt-oss-120b": 169,
        "moonshotai/Kimi-K2.5": 108,
    }
    assert rows["precision"].isin(["mxfp4", "mxfp4_mxfp8"]).sum() == 169
    lengths = set(zip(rows["prompt_tokens"], rows["output_tokens"], strict=True))
    assert lengths == {(1024, 1024), (1024, 8192), (8192, 1024)}


def test_tensor_parallel_twins_of_data_parallel_labels_agree():
    """attention_dp_size > 1 is read as TP = EP = N: TPOT was measured the same."""
    raw = sample.read_csv(sample.systems_folder() / "silicon_sample.csv")
    raw = raw[(raw["backend"] == "vllm") & (raw["precision"] == "fp8")]
    rows = sample.decode(raw[raw["model_path"].str.contains("MiniMax")])
    rows = rows[(rows["stored_moe_ep_size"] > 1) & (rows["date"] == "2026-04-03")]
    labelled = rows["stored_attention_dp_size"] > 1
    twins = rows[labelled].merge(rows[~labelled], on=[*SERIES, "concurrency"])
    assert len(twins) >= 8
    ratio = twins["tpot_s_x"] / twins["tpot_s_y"]
    assert ratio.between(0.98, 1.02).all()


def test_a_row_in_canonical_units_and_names(tmp_path):
    rows, _ = read_rows(tmp_path, {"attention_dp_size": 2.0, "moe_ep_size": 4.0})
    row = rows.iloc[0]
    assert (row["ttft_s"], row["tpot_s"]) == (0.25, 0.02)
    assert (row["tensor_parallel_size"], row["enable_expert_parallel"]) == (2, True)
    assert (row["concurrency"], row["prompt_tokens"], row["output_tokens"]) == (64, 1024, 8192)
    assert (row["date"], row["engine_version"]) == ("2026-04-03", "0.19.0")
    assert row["series"] == "MiniMaxAI/MiniMax-M2.5|b200_sxm|fp8_block|1024x8192|tp2|ep2"


@pytest.mark.parametrize(
    ("model", "label", "scheme"),
    [
        ("openai/gpt-oss-120b", "fp4", "mxfp4"),
        ("openai/gpt-oss-120b", "fp8", "mxfp4"),
        ("openai/gpt-oss-120b", None, "mxfp4"),
        ("moonshotai/Kimi-K2.5", "int4", "int4"),
        ("moonshotai/Kimi-K2.5", "fp4", "nvfp4"),
        ("meta-llama/Llama-3.1-70B", None, "bf16"),
        ("meta-llama/Llama-3.1-70B", "fp8", "fp8"),
        ("MiniMaxAI/MiniMax-M2.5", "fp8", "fp8_block"),
    ],
)
def test_what_a_precision_label_means(tmp_path, model, label, scheme):
    changes = {"model_path": model, "precision": label, "system": "h200_sxm"}
    rows, _ = read_rows(tmp_path, changes)
    assert rows.loc[0, "precision"] == scheme


def test_a_row_has_the_flags_of_the_script_of_its_time(tmp_path):
    """A label on the image of the day before and on that of the branch gets each day's flags."""
    before = "x.csv; silicon_concurrency=64; measured=2026-04-02T02:34:55Z; image="
    after = "x.csv; silicon_concurrency=64; measured=2026-04-03T02:34:55Z; image="
    rows, report = read_rows(
        tmp_path,
        {"silicon_data_source": before + "vllm/vllm-openai:v0.17.0-cu130", "osl": 1024},
        {
            "silicon_data_source": after + "vllm/vllm-openai:v0.19.0-cu130",
            "osl": 1024,
            "silicon_tpot_ms": 21.0,
        },
        {"silicon_data_source": before + "vllm/vllm-openai:v0.17.0-cu130", "isl": 4096},
    )
    flags = [
        "kv_cache_dtype", "enable_expert_parallel", "max_num_batched_tokens", "max_num_seqs",
        "max_cudagraph_capture_size", "moe_backend", "engine_version", "facts",
    ]  # fmt: skip
    assert rows[flags].to_numpy().tolist() == [
        ["", True, "", "", "", "triton", "0.17.0", "known"],
        ["fp8", False, "2048", "", "2048", "", "0.19.0", "known"],
        ["", False, "", "", "", "", "0.19.0", "unknown"],
    ]
    assert [key.split("|")[-1] for key in rows["series"]] == ["ep2", "ep1", "ep1"]
    assert {k: n for k, n in report.noted.items() if n} == {
        "known": 2, "unknown": 1, "unknown: no configuration matches the measurement": 1
    }  # fmt: skip


def test_other_backends_are_counted(tmp_path):
    rows, report = read_rows(tmp_path, {}, {"backend": "trtllm"}, {"mode": "disagg"})
    assert len(rows) == 1
    assert report.refused["not an aggregated vLLM deployment"] == 2


def test_unknown_model_and_precision_raise(tmp_path):
    with pytest.raises(PinnError, match=r"model 'a/b', expected one of meta-llama"):
        read_rows(tmp_path, {"model_path": "a/b"})
    with pytest.raises(PinnError, match="precision 'fp6'"):
        read_rows(tmp_path, {"precision": "fp6"})


def test_a_row_without_concurrency_raises(tmp_path):
    with pytest.raises(PinnError, match="row r0 has no silicon_concurrency"):
        read_rows(tmp_path, {"silicon_data_source": "x.csv"})


def test_a_missing_column_raises(tmp_path):
    path = tmp_path / "silicon_sample.csv"
    pd.DataFrame([raw_row()]).drop(columns=["isl"]).to_csv(path)
    with pytest.raises(PinnError, match="lacks the columns isl"):
        silicon.read_silicon(path)


def test_a_missing_package_names_the_remedy(monkeypatch):
    monkeypatch.setattr("pinn.kernels.tables.table.find_spec", lambda _: None)
    with pytest.raises(PinnError, match="pip install aiconfigurator-core"):
        sample.systems_folder()
