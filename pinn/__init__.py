"""Physics-informed surrogate for the latency of LLM serving engines.

Data flows one way through the sub-packages, and imports follow it:

    common <- specs <- engines <- physics <- kernels <- coefficients <- simulator <- server
          <- training <- planning <- interface <- laboratory

What the commands do, in Python (imported when it is first used):

>>> import pinn
>>> p = pinn.predict(model="Qwen/Qwen3-30B-A3B", gpu="H100", tensor_parallel_size=2)
>>> 0.001 < p.step_time("32 decode @ 700") < 0.1  # seconds
True
"""

from typing import TYPE_CHECKING, Any

from pinn.errors import PinnError

if TYPE_CHECKING:
    from pinn.interface.python.calibration import CalibratedServer, calibrate
    from pinn.interface.python.exports import (
        explore,
        export_blis,
        export_onnx,
        export_specs,
        export_table,
        predict_many,
    )
    from pinn.interface.python.plans import PlannedFleet, plan
    from pinn.interface.python.prediction import Prediction, predict
    from pinn.interface.python.simulation import Simulation, simulate

__version__ = "0.1.0"

__all__ = [
    "CalibratedServer",
    "PinnError",
    "PlannedFleet",
    "Prediction",
    "Simulation",
    "calibrate",
    "explore",
    "export_blis",
    "export_onnx",
    "export_specs",
    "export_table",
    "plan",
    "predict",
    "predict_many",
    "simulate",
]

#: Module of each, but of what :mod:`pinn.interface.python.exports` has.
_PLACES = {
    **dict.fromkeys(("CalibratedServer", "calibrate"), "calibration"),
    **dict.fromkeys(("PlannedFleet", "plan"), "plans"),
    **dict.fromkeys(("Prediction", "predict"), "prediction"),
    **dict.fromkeys(("Simulation", "simulate"), "simulation"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pinn' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"pinn.interface.python.{_PLACES.get(name, 'exports')}")
    found = getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
