"""One configuration: its coefficients, step times and intervals."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
from jaxtyping import Float

from pinn.api import requests
from pinn.api.arguments import read_request, with_arguments
from pinn.cli import outputs
from pinn.cli.coefficient_report import one_report, one_set, print_report
from pinn.cli.coefficients import EXAMPLES
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.specs.batch import Batch, parse_batch
from pinn.specs.serving import ServingSpec
from pinn.surrogate import request_features as request
from pinn.surrogate import step_features as step
from pinn.surrogate.coefficient_set import CoefficientSet
from pinn.surrogate.surrogate import batch_floor_seconds, batch_work, step_seconds
from pinn.units import MICROSECOND

#: One batch, as text or as :class:`~pinn.specs.batch.Batch`.
AnyBatch = str | Batch
#: Several of them.
Batches = list[str] | list[Batch]


@dataclass(frozen=True)
class Prediction:
    """Coefficients of one configuration; times are in seconds.

    Attributes:
        configuration: Model, GPU and flags as they were given.
        checkpoint: Trained network; None for the usual one.
        coefficients: File of ``pinn calibrate`` in place of the network; None for none.
        deployment: What the configuration means.
    """

    configuration: dict[str, Any]
    checkpoint: Path | None
    coefficients: Path | None
    deployment: Deployment = field(init=False, repr=False, compare=False)
    _set: CoefficientSet = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found, deployment = one_set(self.configuration, self.checkpoint, self.coefficients)
        object.__setattr__(self, "_set", found)
        object.__setattr__(self, "deployment", deployment)

    @property
    def beta(self) -> dict[str, float]:
        """Coefficients of a step by name: seconds, or multiples of datasheet time."""
        return dict(zip(step.STEP_FEATURES, self._set.beta.tolist(), strict=True))

    @property
    def alpha(self) -> dict[str, float]:
        """Coefficients of a request outside the steps by name, in seconds or step times."""
        return dict(zip(request.REQUEST_FEATURES, self._set.alpha.tolist(), strict=True))

    @property
    def trust(self) -> str:
        """What the intervals rest on, in words."""
        return str(self.report()["distance"]["sentence"])

    @overload
    def step_time(self, batch: AnyBatch) -> float: ...
    @overload
    def step_time(self, batch: Batches) -> Float[np.ndarray, " batches"]: ...
    def step_time(self, batch: AnyBatch | Batches) -> float | Float[np.ndarray, " batches"]:
        """Seconds that a step with this batch takes; an array of them for several batches.

        Args:
            batch: Such as ``"32 decode @ 700"`` (32 requests after 700 tokens each) or
                ``"1 prefill 512 @ 0 + 16 decode @ 600"``.

        Raises:
            PinnError: If a text is not one of these forms.
        """
        seconds = step_seconds(self._set.beta, *batch_work(self.deployment, _batches(batch)))
        return float(seconds[0]) if not isinstance(batch, list) else seconds

    @overload
    def floor(self, batch: AnyBatch) -> float: ...
    @overload
    def floor(self, batch: Batches) -> Float[np.ndarray, " batches"]: ...
    def floor(self, batch: AnyBatch | Batches) -> float | Float[np.ndarray, " batches"]:
        """Seconds that the datasheet allows at the least, as :meth:`step_time`."""
        seconds = batch_floor_seconds(self.deployment, _batches(batch))
        return float(seconds[0]) if not isinstance(batch, list) else seconds

    def interval(self, batch: str) -> tuple[float, float]:
        """Both ends of the step time's 90 % interval, in seconds.

        Raises:
            PinnError: If the coefficients come without intervals.
        """
        report = self.report(batch)
        (entry,) = report["batches"]
        if "step_time_low_us" not in entry:
            missing = report.get("intervals", {}).get("missing", "the file has no posterior")
            raise PinnError(f"no intervals: {missing}")
        return entry["step_time_low_us"] * MICROSECOND, entry["step_time_high_us"] * MICROSECOND

    def report(self, *batches: str) -> dict[str, Any]:
        """What ``pinn coefficients --json`` writes, with these batches timed."""
        return one_report(self.configuration, batches, self.checkpoint, self.coefficients)

    def save(self, path: str | Path, *batches: str) -> None:
        """Write that as JSON, for every command's ``--coefficients``."""
        outputs.write_json(self.report(*batches), Path(path))

    def __str__(self) -> str:
        """What ``pinn coefficients`` prints."""
        return outputs.printed(print_report, self.report(*EXAMPLES))


@with_arguments(ServingSpec, request=requests.PredictionRequest, deploys=True)
def predict(
    model: str | Path | None = None, gpu: str | Path | None = None, **given: Any
) -> Prediction:
    """Coefficients and step times of a model on a GPU, as ``pinn coefficients`` gives them.

    >>> p = predict("meta-llama/Llama-3.1-8B", "H100", max_num_seqs=256)
    >>> low, high = p.interval("32 decode @ 700")
    >>> p.floor("32 decode @ 700") < low < p.step_time("32 decode @ 700") < high
    True
    >>> predict("meta-llama/Llama-3.1-8B", "H100", tensor_parallel=2)
    Traceback (most recent call last):
    pinn.errors.PinnError: unknown flag 'tensor_parallel': did you mean tensor_parallel_size...

    Args:
        model: Name, or path of a config.json or its folder.
        gpu: Name, or path of a datasheet's JSON file.
        **given: All else; of the engine's flags those not given have its defaults.

    Raises:
        PinnError: If model, GPU or a flag is unknown, or they do not fit together.
    """
    own = {"model": model, "gpu": gpu}
    asked, flags = read_request(requests.PredictionRequest, given, ServingSpec, **own)
    configuration = flags | requests.named(asked.model, asked.gpu)
    return Prediction(configuration, asked.checkpoint, asked.coefficients)


def _batches(batch: AnyBatch | Batches) -> list[Batch]:
    listed = batch if isinstance(batch, list) else [batch]
    for each in listed:
        if not isinstance(each, str | Batch):
            raise PinnError(
                f"{each!r:.60} is no batch: give text such as '32 decode @ 700', or a Batch"
            )
    return [parse_batch(each) if isinstance(each, str) else each for each in listed]
