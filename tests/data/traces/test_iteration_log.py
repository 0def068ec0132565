"""vLLM's iteration logs."""

from pathlib import Path

import pytest

from pinn.measurements.benchmarks.vllm_log import read_iteration_log


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
