"""Tables that come with the project: what was measured, and what another estimator says of it."""

import pandas as pd

from pinn.common.files import data_folder
from pinn.engines.recipe import MEASURED_FILE

#: Predictions of AIConfigurator 0.12, with the package's version in the file's name.
AICONFIGURATOR_FILE = "aiconfigurator_0.12.0.csv"


def released_measurements() -> pd.DataFrame:
    """Which releases of each engine the measured deployments ran, and how much of each there is.

    The table is of all that is read, so that reports need no reader; ``scripts/count_measured.py``
    writes it.
    """
    path = data_folder("engines") / MEASURED_FILE
    return pd.read_csv(path, dtype={"release": str}, keep_default_na=False)


def released_predictions() -> pd.DataFrame:
    """What AIConfigurator says of every row of ``silicon_sample.csv`` that is scored.

    It composes a step from measured kernels, among them those of the very models it is asked about,
    so on a model that pinn has never seen it has the easier task.
    ``scripts/predict_aiconfigurator.py`` writes the file anew.

    Returns:
        ``row_id``, ``ttft_s`` and ``tpot_s`` (NaN without a prediction), the ``recipe`` that
        answered, and the ``reason`` where none did.
    """
    texts = {"recipe": "str", "reason": "str"}
    path = data_folder("peers") / AICONFIGURATOR_FILE
    rows = pd.read_csv(path, dtype=texts, keep_default_na=False)
    times = {name: pd.to_numeric(rows[name], errors="coerce") for name in ("ttft_s", "tpot_s")}
    return rows.assign(**times)
