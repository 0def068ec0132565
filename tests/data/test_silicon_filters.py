"""Each filter on rows made by hand: one that it drops and neighbours that it keeps."""

import pandas as pd
import pytest

from pinn.measurements.deployments.silicon import apply_filters
from pinn.training.data import silicon as filters

BASE = {
    "row_id": "r",
    "source": "source_file=2026-04-06.csv; silicon_concurrency=16",
    "model": "moonshotai/Kimi-K2.5",
    "gpu": "b200_sxm",
    "precision": "fp4",
    "prompt_tokens": 1024,
    "output_tokens": 1024,
    "tensor_parallel_size": 4,
    "stored_attention_dp_size": 1,
    "stored_moe_ep_size": 1,
    "data_parallel_size": 1,
    "enable_expert_parallel": False,
    **dict.fromkeys((*filters.SETTINGS, "enable_prefix_caching"), ""),
    "concurrency": 16.0,
    "date": "2026-03-27",
    "engine_version": "0.17.0",
    "ttft_s": 0.1,
    "tpot_s": 0.010,
}


def rows(*changes):
    return pd.DataFrame([BASE | change for change in changes])


def dropped(rule, *changes):
    table = rows(*changes)
    table.index = [10 * (i + 1) for i in range(len(table))]  # a filtered table has gaps
    mask = rule(table)
    assert list(mask.index) == list(table.index)
    return [i for i, drop in enumerate(mask) if drop]


def test_other_campaign():
    assert dropped(
        filters.from_other_campaign, {"source": "source_file=/Users/harrli/x.csv"}, {}
    ) == [0]


def test_gpt_oss_on_h100_at_512():
    model = {"model": "openai/gpt-oss-120b", "gpu": "h100_sxm", "concurrency": 512.0}
    assert dropped(
        filters.saturated_gpt_oss_on_h100,
        model,
        model | {"concurrency": 256.0},
        model | {"gpu": "h200_sxm"},
        model | {"model": "moonshotai/Kimi-K2.5"},
    ) == [0]


def test_copies_prefer_the_database_dump():
    dump = {"source": "db-dump/2026-04-27; config_id=1; silicon_concurrency=16"}
    assert dropped(filters.copy_across_dumps, {}, dump, {"tpot_s": 0.010004}) == [0, 2]


def test_copies_without_a_dump_keep_the_first():
    assert dropped(filters.copy_across_dumps, {}, {"engine_version": "0.16.0"}) == [1]


@pytest.mark.parametrize(
    "change",
    [{"tpot_s": 0.01002}, {"concurrency": 8.0}, {"gpu": "b300_sxm"}, {"precision": "int4"}],
)
def test_other_measurements_are_no_copies(change):
    assert dropped(filters.copy_across_dumps, {}, change) == []


def test_saturated_rows_have_both_a_long_and_a_relatively_long_ttft():
    slow = {"output_tokens": 1000, "tpot_s": 0.010}  # 10 s of generation, 8 % are 0.8 s
    assert dropped(
        filters.queueing,
        slow | {"ttft_s": 3.1},
        slow | {"ttft_s": 2.9},
        slow | {"ttft_s": 3.1, "output_tokens": 8192},
    ) == [0]


def test_slower_than_a_busier_row():
    quiet, busy = {"tpot_s": 0.0116, "concurrency": 16.0}, {"concurrency": 64.0}
    assert dropped(filters.slower_than_busier, quiet, busy) == [0]
    assert dropped(filters.slower_than_busier, quiet | {"tpot_s": 0.0114}, busy) == []
    assert dropped(filters.slower_than_busier, quiet, {"concurrency": 65.0}) == []
    assert dropped(filters.slower_than_busier, quiet, busy | {"gpu": "b300_sxm"}) == []
    assert dropped(filters.slower_than_busier, quiet, busy | {"kv_cache_dtype": "fp8"}) == []


def test_slower_than_busier_compares_one_date_or_one_known_version():
    quiet, busy = {"tpot_s": 0.02}, {"concurrency": 32.0, "date": "2026-04-01"}
    assert dropped(filters.slower_than_busier, quiet, busy) == [0]
    assert dropped(filters.slower_than_busier, quiet, busy | {"engine_version": "0.18.0"}) == []
    unknown = {"engine_version": filters.UNKNOWN_VERSION}
    assert dropped(filters.slower_than_busier, quiet | unknown, busy | unknown) == []


def test_slower_rerun():
    assert dropped(filters.slower_rerun, {"date": "a"}, {"tpot_s": 0.0116}, {"tpot_s": 0.0114}) == [
        1
    ]
    slow = {"tpot_s": 0.02}
    assert dropped(filters.slower_rerun, {}, slow | {"engine_version": "0.16.0"}) == []
    assert dropped(filters.slower_rerun, {}, slow | {"kv_cache_dtype": "fp8"}) == []
    assert dropped(filters.slower_rerun, {}, slow | {"enable_prefix_caching": "no"}) == [1]


def test_nightly_image():
    assert dropped(filters.nightly_image, {"source": "image=vllm/vllm-openai:nightly-5b"}, {}) == [
        0
    ]


def test_filters_run_in_order_and_see_what_is_left():
    """A nightly re-run that is faster must drop the slower one first, then go itself."""
    nightly = {"source": "image=vllm/vllm-openai:nightly-5b", "row_id": "n"}
    left, counts = apply_filters(rows(nightly, {"tpot_s": 0.02}), filters.FILTERS)
    assert left.empty
    assert [reason for reason, count in counts.items() if count] == [
        "slower of two runs of one configuration that differ by more than 15 %",
        "nightly image",
    ]
    assert list(counts) == list(filters.FILTERS)
