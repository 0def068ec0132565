"""Physics-informed surrogate for the latency of LLM serving engines.

Data flows one way through the sub-packages, and imports follow it:

    common <- specs <- engines <- physics <- memory <- kernels <- surrogate <- simulator
          <- measurements <- training <- calibration <- planning <- export <- evaluation
          <- api <- cli

What the commands do, in Python (imported when it is first used):

>>> import pinn
>>> p = pinn.predict(model="Qwen/Qwen3-30B-A3B", gpu="H100", tensor_parallel_size=2)
>>> 0.001 < p.step_time("32 decode @ 700") < 0.1  # seconds
True
"""

from typing import TYPE_CHECKING

from pinn.errors import PinnError

if TYPE_CHECKING:
    from pinn.api.calibration import CalibratedServer, calibrate
    from pinn.api.exports import export_blis, export_onnx, export_table
    from pinn.api.plans import PlannedFleet, explore, plan
    from pinn.api.prediction import Prediction, predict, predict_many
    from pinn.api.simulation import RateSweep, Simulation, simulate, sweep

__version__ = "0.2.0"

__all__ = [
    "CalibratedServer",
    "PinnError",
    "PlannedFleet",
    "Prediction",
    "RateSweep",
    "Simulation",
    "calibrate",
    "explore",
    "export_blis",
    "export_onnx",
    "export_table",
    "plan",
    "predict",
    "predict_many",
    "simulate",
    "sweep",
]

#: Module of each, but of what :mod:`pinn.api.exports` has.
_PLACES = {
    **dict.fromkeys(("CalibratedServer", "calibrate"), "calibration"),
    **dict.fromkeys(("PlannedFleet", "explore", "plan"), "plans"),
    **dict.fromkeys(("Prediction", "predict", "predict_many"), "prediction"),
    **dict.fromkeys(("RateSweep", "Simulation", "simulate", "sweep"), "simulation"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'pinn' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"pinn.api.{_PLACES.get(name, 'exports')}")
    found: object = getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
