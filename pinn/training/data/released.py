"""Tables that come with the project: what was measured, and what another estimator says of it."""

import pandas as pd

from pinn.common.files import data_folder
from pinn.engines.recipe import MEASURED_FILE

#: Other estimators -> the file of their predictions, with the package's version in its name.
PEERS = {
    "aiconfigurator": "aiconfigurator_0.12.0.csv",
    "aisimulate": "aisimulate_0.13.0.dev202610270000000085.csv",
}


def released_measurements() -> pd.DataFrame:
    """Which releases of each engine the measured deployments ran, and how much of each there is.

    The table is of all that is read, so that reports need no reader; ``scripts/count_measured.py``
    writes it.
    """
    path = data_folder("engines") / MEASURED_FILE
    return pd.read_csv(path, dtype={"release": str}, keep_default_na=False)


def released_predictions(peer: str = "aiconfigurator") -> pd.DataFrame:
    """What another estimator says of the rows of ``silicon_sample.csv`` that are scored.

    Both compose a step from measured kernels, among them those of the very models they are asked
    about, so on a model that pinn has never seen they have the easier task.
    ``scripts/predict_aiconfigurator.py`` and ``scripts/predict_aisimulate.py``, which was asked for
    vLLM's rows alone, write the files anew.

    Args:
        peer: One of ``PEERS``.

    Returns:
        ``row_id``, ``ttft_s`` and ``tpot_s`` (NaN without a prediction), the ``recipe`` that
        answered, and the ``reason`` where none did.
    """
    texts = {"recipe": "str", "reason": "str"}
    path = data_folder("peers") / PEERS[peer]
    rows = pd.read_csv(path, dtype=texts, keep_default_na=False)
    times = {name: pd.to_numeric(rows[name], errors="coerce") for name in ("ttft_s", "tpot_s")}
    return rows.assign(**times)
