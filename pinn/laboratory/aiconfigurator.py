"""What the estimator AIConfigurator 0.12 says of the observations of ``silicon_sample.csv``.

It composes a step from measured kernels, among them those of the very models it is asked about,
so on a model that pinn has never seen it has the easier task. ``scripts/predict_aiconfigurator.py``
writes the file anew.
"""

from __future__ import annotations

import pandas as pd

from pinn.common.files import data_folder

#: File of the predictions, with the package's version in its name.
FILE = "aiconfigurator_0.12.0.csv"


def released_predictions() -> pd.DataFrame:
    """The predictions that come with the project, for every row of ``silicon_sample.csv`` scored.

    Returns:
        ``row_id``, ``ttft_s`` and ``tpot_s`` (NaN without a prediction), the ``recipe`` that
        answered, and the ``reason`` where none did.

    Raises:
        PinnError: If the data folder is missing.
    """
    texts = {"recipe": "str", "reason": "str"}
    rows = pd.read_csv(data_folder("peers") / FILE, dtype=texts, keep_default_na=False)
    times = {name: pd.to_numeric(rows[name], errors="coerce") for name in ("ttft_s", "tpot_s")}
    return rows.assign(**times)
