"""Tables released with the project: measurements, and other estimators' predictions of them."""

import pandas as pd

from pinn.common.files import data_folder
from pinn.engines.recipe import MEASURED_FILE

#: CSV files of predicted TPOT and TTFT, by other estimator. Each file is named after the
#: estimator's version.
PEERS = {
    "aiconfigurator": "aiconfigurator_0.12.0.csv",
    "aisimulate": "aisimulate_0.13.0.dev202610270000000085.csv",
}


def released_measurements() -> pd.DataFrame:
    """Read the number of measured deployments per engine release.

    The table summarizes all measurements, so that reports do not need access to them.
    ``scripts/count_measured.py`` writes the table.
    """
    path = data_folder("engines") / MEASURED_FILE
    return pd.read_csv(path, dtype={"release": str}, keep_default_na=False)


def released_predictions(peer: str = "aiconfigurator") -> pd.DataFrame:
    """Read another estimator's predictions of the evaluated rows of ``silicon_sample.csv``.

    The estimators sum a step's time from measured kernels, including kernels of the predicted
    model. Their task is therefore easier than pinn's for a model on which pinn was not trained.
    ``scripts/predict_aiconfigurator.py`` and ``scripts/predict_aisimulate.py`` recreate the files.
    AISimulate predicts only rows for vLLM.

    Args:
        peer: Name of the estimator, one of ``PEERS``.

    Returns:
        ``row_id``, ``ttft_s`` and ``tpot_s`` (NaN without a prediction), the ``recipe`` (engine
        configuration) that was predicted, and the ``reason`` for a missing prediction.
    """
    texts = {"recipe": "str", "reason": "str"}
    path = data_folder("peers") / PEERS[peer]
    rows = pd.read_csv(path, dtype=texts, keep_default_na=False)
    times = {name: pd.to_numeric(rows[name], errors="coerce") for name in ("ttft_s", "tpot_s")}
    return rows.assign(**times)
