"""Fit the sampler constants of ``pinn/physics/costs.py`` to measured times.

    python scripts/fit_sampler.py

The time in seconds of a group of kernels is ``launch_s + vocabulary x logit_s + slowdown x requests
x vocabulary x logit_bytes / bandwidth``. The three constants of each group are fitted and
constrained to be non-negative. A sampling step takes the sum over its groups. The fit minimizes the
relative errors of that time.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from pinn.physics import cost_facts as sampling
from pinn.specs.gpu import load_gpu

TIMED = Path(__file__).parents[1] / "data/kernels/sampler_h100_sxm.csv"
GPU = "H100-SXM"
GROUPS = ("TAKEN", "DRAWN", "MASS", "COUNT_BESIDE_MASS", "COUNT", "RATIO", "PENALIZED")
#: Kernel groups required by a sampling setting, in addition to those of greedy sampling, by
#: setting.
ASKED = {
    "draw": "DRAWN", "top-p": "MASS", "top-k": "COUNT", "min-p": "RATIO", "penalties": "PENALIZED",
}  # fmt: skip

#: Scales of launch_s, logit_s and slowdown that make the least-squares problem well-conditioned.
_UNITS = np.array([1e-5, 1e-10, 1.0])


def groups(settings: str) -> set[str]:
    """Return the names of the kernel groups that the sampling settings of a row use."""
    found = {"TAKEN", *(ASKED[name] for name in settings.split() if name != "greedy")}
    both = {"COUNT", "MASS"} <= found
    return found - {"COUNT"} | {"COUNT_BESIDE_MASS"} if both else found


def fit(timed: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """Return launch time, time per logit and slowdown of each kernel group.

    The second result is the relative error of each row.
    """
    bandwidth = load_gpu(GPU).memory_bandwidth_bytes_per_s
    seconds, logits, requests = timed[["seconds", "vocabulary", "requests"]].to_numpy().T
    terms = np.zeros((len(timed), len(GROUPS), 3))
    for column, group in enumerate(GROUPS):
        asked = np.array([group in groups(settings) for settings in timed["settings"]])
        moved = logits * requests * getattr(sampling, group).logit_bytes
        terms[asked, column] = np.stack([np.ones(len(timed)), logits, moved / bandwidth], 1)[asked]
    relative = (terms * _UNITS).reshape(len(timed), -1) / seconds[:, None]
    found = nnls(relative, np.ones(len(timed)))[0]
    table = pd.DataFrame(
        found.reshape(-1, 3) * _UNITS, index=GROUPS, columns=["launch_s", "logit_s", "slowdown"]
    )
    return table, relative @ found - 1


if __name__ == "__main__":
    constants, errors = fit(pd.read_csv(TIMED))
    print(constants.to_string(float_format=lambda value: f"{value:.2g}"))
    print(f"mean error {100 * np.abs(errors).mean():.0f} % over {len(errors)} points")
