"""KV events, iteration logs, TraceV2 and inference-perf reports."""

import json
import os
from pathlib import Path

import pyarrow.compute as pc
import pytest
import yaml

from pinn.errors import PinnError
from pinn.server.readers.inference_perf import inter_token_latency, read_inference_perf
from pinn.server.readers.iteration_log import read_blis_trace, read_iteration_log
from pinn.server.readers.kv_events import read_kv_events, transfer_rates


def kv_file(folder: Path, *lines: object) -> Path:
    path = folder / "kv_events.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_kv_events_of_every_kind(tmp_path: Path) -> None:
    path = kv_file(
        tmp_path,
        [10.0, [["BlockStored", [1, 2], None, [5] * 32, 16, None, "GPU"]], 0, None],
        [10.5, [["BlockRemoved", [1]], ["AllBlocksCleared"]]],
        [11.0, [["TransferInitiated", "t1", "r1", "GPU", "CPU", 8, 40]], 1],
        [11.5, [["TransferCompleted", "t1", "r1", "GPU", "CPU", 8, True, 44]], 1],
        [11.5, [["TransferCompleted", "t1", "r1", "GPU", "CPU", 8, True, 44]], 1],
        [12.0, [["CacheEviction", "GPU", 3, "lru", 50, None]]],
        [12.0, [["CacheLoadCommitted", "r1", "CPU", 8, 45]]],
        [12.0, [["RemoteTransferInitiated", "t2", "r2", "nixl", 0, 1, 4]]],
        [12.1, [{"type": "BlockRemoved", "block_hashes": [7, 8], "medium": "CPU"}]],
    )
    read = read_kv_events(path)
    assert read.lines.accepted == 9
    assert dict(read.events.refused) == {"TransferCompleted written twice": 1}
    rows = read.table.to_pylist()
    assert (rows[0]["blocks"], rows[0]["tokens"], rows[0]["block_size"]) == (2, 32, 16)
    assert [r["step"] for r in rows if r["event"] == "CacheEviction"] == [50]
    assert rows[-1]["blocks"] == 2
    assert rows[-2]["medium"] == "nixl"
    assert [r["dp_rank"] for r in rows][:3] == [0, None, None]


def test_transfer_rates_join_both_ends(tmp_path: Path) -> None:
    path = kv_file(
        tmp_path,
        [11.0, [["TransferInitiated", "t1", "r1", "GPU", "CPU", 8, 40]]],
        [11.5, [["TransferCompleted", "t1", "r1", "GPU", "CPU", 8, True, 44]]],
        [11.6, [["TransferCompleted", "t9", "r1", "GPU", "CPU", 8, True, 44]]],
    )
    rates = transfer_rates(read_kv_events(path).table, block_bytes=1e6).to_pylist()
    assert len(rates) == 1
    assert rates[0]["bytes_per_s"] == pytest.approx(8e6 / 0.5)


def test_broken_kv_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "kv.jsonl"
    path.write_text(
        '{"a": 1}\n\n'
        '[1.0, [["Odd"], [], ["BlockRemoved", 5], ["CacheEviction", "GPU", "x"], '
        '["CacheEviction", "GPU", 3, "lru", true]]]\n'
        "[2.0, [["
    )
    read = read_kv_events(path)
    assert dict(read.lines.refused) == {
        "not a batch of [time, [events], ...]": 1,
        "blank line": 1,
        "truncated last line": 1,
    }
    assert read.events.read == 5
    assert sum(read.events.refused.values()) == 5


def test_iteration_log(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(
        "INFO 02-18 15:03:04 starting\n"
        "INFO 02-18 15:03:06 Iteration(7): 1 context requests, 512 context tokens, "
        "32 generation requests, 32 generation tokens, iteration elapsed time: 15.25 ms\n"
        "INFO Iteration(8): 0 context requests, 0 context tokens, iteration elapsed time: 9 ms\n"
        "INFO Iteration(9): 0 context requests, 0 context tokens, 0 generation requests, 0 "
        "generation tokens, iteration elapsed time: 9 ms (dummy)\n"
        f"INFO Iteration({10**20}): 0 context requests, 0 context tokens\n"
    )
    table, report = read_iteration_log(path)
    assert (report.read, report.accepted) == (5, 1)
    assert dict(report.refused) == {
        "no iteration details": 2,
        "iteration without decode requests": 1,
        "idle step of a data-parallel rank": 1,
    }
    assert table.to_pylist()[0] == {
        "step_id": 7, "prefill_requests": 1, "prefill_tokens": 512, "decode_requests": 32,
        "decode_tokens": 32, "elapsed_s": pytest.approx(0.01525),
        "logged_s": (((2 * 31 + 18) * 24 + 15) * 60 + 3) * 60 + 6,
    }  # fmt: skip


def test_trace_v2(tmp_path: Path) -> None:
    header, data = tmp_path / "h.yaml", tmp_path / "d.csv"
    header.write_text(
        yaml.safe_dump({"trace_version": 2, "time_unit": "us", "server": {"model": "m"}})
    )
    data.write_text(
        "request_id,input_tokens,output_tokens,server_input_tokens,arrival_time_us,send_time_us,"
        "first_chunk_time_us,last_chunk_time_us,status\n"
        "a,100,11,104,0,1000,21000,121000,ok\n"
        "b,100,11,0,5000,5000,0,0,error\n"
        "b,100,11,0,5000,5000,0,0,error\n"
        "c,x,11,0,5000,5000,0,0,ok\n"
    )
    trace = read_blis_trace(header, data)
    assert trace.header["server"] == {"model": "m"}
    assert (trace.report.read, trace.report.accepted) == (4, 2)
    first, failed = trace.requests.to_dict("records")
    assert first["input_tokens"] == 104
    assert first["ttft_s"] == pytest.approx(0.02)
    assert first["itl_s"] == pytest.approx(0.01)
    assert failed["ttft_s"] != failed["ttft_s"]


def test_trace_v2_of_another_unit_is_refused(tmp_path: Path) -> None:
    header = tmp_path / "h.yaml"
    header.write_text("trace_version: 2\ntime_unit: fortnight\n")
    with pytest.raises(PinnError, match="time_unit 'fortnight' is unknown"):
        read_blis_trace(header, tmp_path / "d.csv")


@pytest.mark.parametrize(
    ("reported", "tokens", "rule", "true"),
    [
        (0.0050, 101, "halved", 0.010),
        (0.0100, 101, "as counted", 0.010),
        (0.0125, 101, "as counted", 0.010),  # re-tokenized to fewer tokens than were generated
        (0.0300, 101, "unknown", 0.010),
        (0.0050, None, "unknown", 0.0050),
    ],
)
def test_halved_itl_is_recognized(reported, tokens, rule, true) -> None:
    found = inter_token_latency(reported_s=reported, e2e_s=1.1, ttft_s=0.1, output_tokens=tokens)
    assert found[0] == reported
    assert found[1] == pytest.approx(true)
    assert found[2] == rule


def write_report(folder: Path, *, succeeded: int, failed: int, served: float = 10.0) -> None:
    spread = {"mean": 1.0, "p90": 1.0, "p99": 1.0}
    report = {
        "load_summary": {"count": succeeded + failed, "requested_rate": 10.0},
        "successes": {
            "count": succeeded,
            "latency": {"request_latency": spread, "time_to_first_token": spread},
            "throughput": {"requests_per_sec": served},
        },
        "failures": {"count": failed},
    }
    folder.mkdir(parents=True)
    (folder / "stage_0_lifecycle_metrics.json").write_text(json.dumps(report))


def test_overload_is_told_by_failures_or_throughput(tmp_path: Path) -> None:
    write_report(tmp_path / "a", succeeded=100, failed=0)
    write_report(tmp_path / "b", succeeded=50, failed=50)
    write_report(tmp_path / "c", succeeded=100, failed=0, served=5.0)
    (tmp_path / "c" / "stage_1_lifecycle_metrics.json").write_text("{")
    (tmp_path / "c" / "stage_2_lifecycle_metrics.json").write_text('{"load_summary": {}}')
    rows, report = read_inference_perf(tmp_path)
    assert rows["overloaded"].tolist() == [False, True, True]
    assert (report.read, report.accepted) == (5, 3)
    assert report.refused["invalid JSON"] == 1


def public_reports() -> Path:
    folder = os.environ.get("PINN_INFERENCE_PERF")
    if not folder:
        pytest.skip("PINN_INFERENCE_PERF names no folder of inference-perf runs")
    return Path(folder)


def test_public_reports_are_read_corrected_and_flagged() -> None:
    rows, report = read_inference_perf(public_reports())
    assert report.accepted == report.read
    assert (rows["itl_rule"] == "halved").all()
    overloaded = rows[rows["overloaded"]]
    assert overloaded["run"].str.contains("reasoning").all()
    assert len(overloaded) == 2  # the stage and the summary
    assert (rows["itl_mean_s"] / rows["itl_mean_reported_s"]).between(1.9, 2.1).all()
    # The profiles asked for other prompts than ran.
    assert rows["prompts"].eq(100).all()
    assert rows["profile_differs"].str.contains("num_prompts_per_group 10 instead").all()


def test_kv_table_can_be_filtered(tmp_path: Path) -> None:
    read = read_kv_events(kv_file(tmp_path, [1.0, [["AllBlocksCleared"]]]))
    assert read.table.filter(pc.equal(read.table["event"], "AllBlocksCleared")).num_rows == 1
