from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pinn.network.coefficient_network import NetworkSettings
from pinn.training.learner import ServingLearner
from pinn.training.serving_fit import ServingFitSettings
from pinn.training.serving_rows import ServingRows, serving_rows
from pinn.training.trainer import make_trainer

#: Model, precision, tensor parallel, expert parallel, concurrency, measured time / floor.
_MEASURED = (
    ("meta-llama/Meta-Llama-3.1-8B", "bf16", 1, False, 2, 1.4),
    ("meta-llama/Meta-Llama-3.1-8B", "bf16", 1, False, 8, 1.6),
    ("meta-llama/Meta-Llama-3.1-8B", "fp8", 2, False, 8, 2.6),
    ("mistralai/Mixtral-8x7B-v0.1", "bf16", 4, False, 4, 2.9),
    ("mistralai/Mixtral-8x7B-v0.1", "bf16", 4, True, 4, 3.3),
)


def observations() -> pd.DataFrame:
    """Five made-up measurements of two models; times are filled in from the floor."""
    rows = [
        {
            "row_id": f"row {i}",
            "model": model,
            "gpu": "h100_sxm",
            "precision": precision,
            "tensor_parallel_size": tp,
            "enable_expert_parallel": spread,
            "kv_cache_dtype": "auto",
            "concurrency": concurrency,
            "prompt_tokens": 256,
            "output_tokens": 32,
            "ttft_s": 1.0,
            "tpot_s": 1.0,
            "engine_version": "0.15.1",
            "date": "",
            "series": "made up",
        }
        for i, (model, precision, tp, spread, concurrency, _) in enumerate(_MEASURED)
    ]
    return pd.DataFrame(rows)


@pytest.fixture(scope="session")
def rows() -> ServingRows:
    """The measurements, each some way above its floor."""
    found = serving_rows(observations())
    above = np.array([m[-1] for m in _MEASURED])
    return replace(
        found,
        tpot_s=above * found.tpot_floor_s,
        ttft_s=1.2 * above * found.ttft_floor_s + 0.01,
    )


@pytest.fixture
def learner() -> ServingLearner:
    """Quiet, small and quick."""
    return ServingLearner(
        NetworkSettings(hidden=16, depth=1),
        ServingFitSettings(steps=300, learning_rate=0.02),
        partial(make_trainer, progress=False),
        seed=3,
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    """Of logs and the state to resume from."""
    return tmp_path / "logs"
