"""Tables that come with the project: measurements, and another estimator's predictions of them."""

import pandas as pd

from pinn.common.files import data_folder
from pinn.engines.recipe import MEASURED_FILE

#: Other estimator -> file of its predictions, with the package's version in its name.
PEERS = {
    "aiconfigurator": "aiconfigurator_0.12.0.csv",
    "aisimulate": "aisimulate_0.13.0.dev202610270000000085.csv",
}


def released_measurements() -> pd.DataFrame:
    """Read the releases of each engine that measured deployments ran, and the count of each.

    The table covers everything that is read, so that reports need no reader;
    ``scripts/count_measured.py`` writes it.
    """
    path = data_folder("engines") / MEASURED_FILE
    return pd.read_csv(path, dtype={"release": str}, keep_default_na=False)


def released_predictions(peer: str = "aiconfigurator") -> pd.DataFrame:
    """Read another estimator's predictions of the scored rows of ``silicon_sample.csv``.

    Both estimators compose a step from measured kernels, including those of the predicted models.
    On a model that pinn has never seen, their task is therefore easier.
    ``scripts/predict_aiconfigurator.py`` and ``scripts/predict_aisimulate.py`` write the files
    anew; the latter predicts vLLM's rows alone.

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
