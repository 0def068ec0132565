"""Each filter of SGLang's and TensorRT-LLM's rows: one that it drops and neighbours it keeps."""

import pandas as pd
import pytest

from pinn.training.data import engine_deployments as filters

DEEPSEEK = "deepseek-ai/DeepSeek-R1"
BASE = {
    "row_id": "r",
    "source": "source_file=2026-04-06.csv; silicon_concurrency=16",
    "engine": "trtllm",
    "model": DEEPSEEK,
    "gpu": "b200_sxm",
    "precision": "fp8",
    "prompt_tokens": 1024,
    "output_tokens": 1024,
    "tensor_parallel_size": 8,
    "enable_expert_parallel": False,
    "concurrency": 16.0,
    "date": "2026-02-05",
    "engine_version": "1.2.0rc6.post2",
    "ttft_s": 0.1,
    "tpot_s": 0.010,
    "drafts": "",
}


def dropped(rule, *changes):
    table = pd.DataFrame([BASE | change for change in changes])
    table.index = [10 * (i + 1) for i in range(len(table))]  # a filtered table has gaps
    mask = rule(table)
    assert list(mask.index) == list(table.index)
    return [i for i, drop in enumerate(mask) if drop]


@pytest.mark.parametrize(
    ("rule", "wrong", "kept"),
    [
        (filters.several_nodes, {"gpu": "gb200"}, [{}]),
        (filters.speculates, {"drafts": "MTP 3"}, [{"tpot_s": 0.012}]),
        (
            filters.development_image,
            {"engine_version": "nightly-dev-20260216-d3bae71e"},
            [{"engine_version": "0.5.9"}],
        ),
        (filters.other_attention, {"model": "zhipuai/GLM-5"}, [{}]),
    ],
)
def test_a_rule_drops_what_it_says(rule, wrong, kept):
    assert dropped(rule, wrong, *kept) == [0]


def test_mtp_of_the_day_is_what_config_87_does_not_hold():
    row = {"engine": "sglang", "date": "2026-03-25"}
    plain = {"source": "db-dump/2026-04-27; config_id=87; silicon_concurrency=16"}
    fast = row | {"tpot_s": 0.007}
    copy = row | {"tpot_s": 0.010004}
    assert dropped(filters.mtp_beside_plain, row | plain, fast, copy) == [1]
    assert dropped(filters.mtp_beside_plain, fast | {"date": "2025-11-18"}) == []


def test_a_copy_of_a_row_that_speculates_does_so_too():
    drafts = {"drafts": "MTP 3"}
    copy = {"source": "source_file=of-another-dump.csv", "tensor_parallel_size": 4}
    assert dropped(filters.speculates, drafts, copy, {"concurrency": 32.0}) == [0, 1]


def test_copies_go_across_layouts_and_prefer_the_database_dump():
    dump = {"source": "db-dump/2026-04-27; config_id=87", "tensor_parallel_size": 4}
    assert dropped(filters.copy_of_a_row, {}, dump, {"tpot_s": 0.01002}) == [0]
    assert dropped(filters.copy_of_a_row, {}, {"engine": "sglang"}) == []


def test_the_other_campaign_is_checked_where_its_loads_are_stated():
    harrli = {"source": "source_file=/Users/harrli/x.csv", "engine_version": "1.0.0rc3"}
    assert dropped(
        filters.not_of_checked_campaign,
        harrli,
        harrli | {"engine_version": "1.3.0rc1"},
        harrli | {"engine": "sglang", "engine_version": "0.5.6.post2"},
        {"engine_version": "1.0.0rc3"},
    ) == [1, 3]
