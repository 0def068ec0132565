"""Measured transfers of keys and values give back the link to host memory."""

from __future__ import annotations

import json

import numpy as np
import pytest
from simulator_helpers import load, play

from pinn.calibration.host_link import fit_host_link
from pinn.errors import PinnError
from pinn.measurements.kv_transfers import read_kv_transfers

BLOCK_BYTES = 4 * 4096
RATE, LATENCY = 2.0e6, 3.0e-3


def transfers():
    """Transfers of a run whose link is known: prompts that come again, in a small cache."""
    rng = np.random.default_rng(0)
    n, chosen = 80, rng.integers(0, 12, 80)
    first = [int(np.flatnonzero(chosen == each)[0]) for each in chosen]
    prompts = [int(size) for size in rng.integers(4, 28, 12)[chosen]]
    shares = [donor if donor < i else -1 for i, donor in enumerate(first)]
    workload = load(prompts, [2] * n, 100.0 * np.arange(n), shares_with=shares,
                    shared_tokens=prompts)  # fmt: skip
    config = {"kv_connector": "OffloadingConnector",
              "kv_connector_extra_config": {"cpu_bytes_to_use": 60 * BLOCK_BYTES}}  # fmt: skip
    engine = {"num_gpu_blocks_override": 9, "kv_transfer_config": json.dumps(config),
              "host_link_copy_s": 0.0, "host_link_bytes_per_s": RATE,
              "host_link_latency_s": LATENCY}  # fmt: skip
    return play(workload, engine=engine, max_model_len=32).run.transfers


def write_events(path, moved):
    """KV events of transfers, with microseconds, each twice as servers may write them."""
    lines = []
    for i in range(len(moved)):
        ways = ("cpu", "gpu") if moved.load[i] else ("gpu", "cpu")
        where = [f"t{i}", f"r{moved.request[i]}", *ways, int(moved.blocks[i])]
        begin = [round(float(moved.planned_s[i]), 6), [["TransferInitiated", *where, i]]]
        end = [round(float(moved.end_s[i]), 6), [["TransferCompleted", *where, True, i]]]
        lines += [begin, begin, end, end]
        if not moved.load[i]:
            lines.append([end[0], [["CacheStoreCommitted", where[1], "cpu", where[4], i]], 0, None])
    lines += [[1.0, [["TransferInitiated", "left", "r", "gpu", "cpu", 4, 0]]], "no batch"]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")


def test_events_of_a_simulation_give_back_its_link(tmp_path):
    moved = transfers()
    assert moved.load.any()
    assert (~moved.load).any()
    write_events(tmp_path / "kv_events.jsonl", moved)
    read = read_kv_transfers([tmp_path / "kv_events.jsonl"])
    assert len(read.size) == len(moved)
    assert read.committed == (~moved.load).sum()
    assert read.report.refused == {"no batch of KV events": 1, "without an end": 1}
    link = fit_host_link(read, BLOCK_BYTES)
    assert link.bytes_per_s == pytest.approx(RATE, rel=1e-3)
    assert link.latency_s == pytest.approx(LATENCY, rel=1e-2)
    low, high = link.bytes_per_s_interval
    assert low <= RATE <= high < 1.01 * RATE
    low, high = link.latency_s_interval
    assert low <= LATENCY <= high < 1.1 * LATENCY


PAGE = """vllm:kv_offload_{0}{{engine="0"}} 1
vllm:kv_offload_load_bytes_total{{engine="0"}} {1}
vllm:kv_offload_load_time_total{{engine="0"}} {2}
vllm:kv_offload_load_size_count{{engine="0"}} {3}
vllm:kv_offload_load_size_bucket{{engine="0",le="+Inf"}} {3}
"""


def write_pages(folder, series):
    """Metrics pages of loads with the known link, cumulative."""
    paths = []
    for i, (size, count) in enumerate(series):
        seconds = size / RATE + count * LATENCY
        paths.append(folder / f"page{i}.txt")
        paths[-1].write_text(PAGE.format("x", size, seconds, count))
    return paths


def test_metrics_pages_give_back_the_link(tmp_path):
    paths = write_pages(tmp_path, [(1e6, 2), (9e6, 5), (1.1e7, 25), (5e7, 30)])
    read = read_kv_transfers(paths)
    assert read.in_bytes
    assert read.load.all()
    link = fit_host_link(read, BLOCK_BYTES)
    assert link.bytes_per_s == pytest.approx(RATE)
    assert link.latency_s == pytest.approx(LATENCY)
    assert link.transfers == 30
    assert link.gigabytes == pytest.approx(0.05)


def test_one_page_gives_the_mean_rate_alone(tmp_path):
    link = fit_host_link(read_kv_transfers(write_pages(tmp_path, [(8e6, 4)])), BLOCK_BYTES)
    assert link.bytes_per_s == pytest.approx(8e6 / (8e6 / RATE + 4 * LATENCY))
    assert link.latency_s == 0
    assert link.bytes_per_s_interval is None
    assert "GB/s" in link.sentence


def test_older_pages_have_the_way_in_a_label(tmp_path):
    text = "".join(
        f'vllm:kv_offload_{name}{{engine="0",transfer_type="CPU_to_GPU"}} {value}\n'
        for name, value in (
            ("total_bytes_total", 4e6),
            ("total_time_total", 2.0),
            ("size_count", 3),
        )
    )
    (tmp_path / "page.txt").write_text(text)
    read = read_kv_transfers([tmp_path / "page.txt"])
    assert (read.count, read.size, read.seconds, read.load) == (3, 4e6, 2.0, True)


def test_what_tells_of_no_transfer_is_refused(tmp_path):
    path = tmp_path / "kv_events.jsonl"
    path.write_text('[1.0, [["BlockStored", [], null, [], 16, null, "GPU"]], 0, null]\n')
    with pytest.raises(PinnError, match="no finished transfer between GPU and host"):
        read_kv_transfers([path])
    (tmp_path / "page.txt").write_text(PAGE.format("x", 1, 1, 1))
    with pytest.raises(PinnError, match="/metrics pages of one server"):
        read_kv_transfers([path, tmp_path / "page.txt"])
