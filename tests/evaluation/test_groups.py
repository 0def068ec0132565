from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.evaluation.metrics import group_masks
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.training.serving_rows import ServingRows

DEPLOYMENTS = tuple(
    Deployment(load_model(name), load_gpu("H100"), ServingSpec())
    for name in ("meta-llama/Llama-3.1-8B", "openai/gpt-oss-20b")
)
ROWS = Mock(
    spec=ServingRows,
    deployments=DEPLOYMENTS,
    deployment=np.array([0, 1, 1]),
    row_id=np.array(["a", "b", "c"]),
    concurrency=np.array([1, 8, 64]),
)


@pytest.mark.parametrize(
    ("group", "members"),
    [("mixture-of-experts", "bc"), ("dense", "a"), ("low-concurrency", "ab")],
)
def test_a_group_holds_its_rows_and_no_others(group, members):
    """Check groups, with rows that are no measured deployment, such as traced steps, in none."""
    predictions = pd.DataFrame({"row_id": ["c", "traced", "a", "b", "b"]})
    mask = group_masks([group], ROWS, predictions)[group]
    assert sorted(predictions["row_id"][mask].unique()) == list(members)
    assert not mask[1]


def test_an_unknown_group_is_refused():
    with pytest.raises(PinnError, match=r"the groups sparse are unknown"):
        group_masks(["sparse"], ROWS, pd.DataFrame({"row_id": []}))
