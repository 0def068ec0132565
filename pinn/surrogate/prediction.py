"""Prediction of one configuration: its coefficients and step times, with their evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np
from jaxtyping import Float

from pinn.common import JsonObject
from pinn.common.files import save_json
from pinn.common.screen import printed
from pinn.engines.deployment import Deployment
from pinn.engines.recipe import unread_notice
from pinn.errors import PinnError
from pinn.memory.start_up import StartUp
from pinn.specs.batch import Batch, parse_batch
from pinn.surrogate import prediction_tables as tables
from pinn.surrogate.batch_marks import batch_marks
from pinn.surrogate.coefficient_set import CoefficientSet, deployment_facts, set_to_json
from pinn.surrogate.encoder_time import EncoderTime
from pinn.surrogate.evidence import Ends, Evidence, FindEvidence
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.surrogate.surrogate import batch_floor_seconds, batch_seconds
from pinn.units import MICROSECOND

#: A batch, as text or as :class:`~pinn.specs.batch.Batch`.
AnyBatch = str | Batch
#: Several batches, all as text or all as objects.
Batches = list[str] | list[Batch]


@dataclass(frozen=True)
class StepTime:
    """Predicted time of a step that runs one batch.

    Attributes:
        batch: Description of the batch.
        seconds: Predicted time in seconds.
        floor: Roofline lower bound in seconds.
        tokens: Number of prompt tokens that the step processes plus tokens that it generates.
        tokens_per_decode: Expected tokens that the step generates per decode; None without
            speculative decoding.
        marks: Warnings: limits of the engine and of the training data that the batch exceeds.
        ends: Both ends of the 90 % interval in seconds; None if it is unknown.
        encoder: Time in seconds of the image or audio encoder, included in the predicted time.
    """

    batch: str
    seconds: float
    floor: float
    tokens: float
    tokens_per_decode: float | None
    marks: tuple[str, ...]
    ends: tuple[float, float] | None
    encoder: float = 0.0

    @property
    def per_token(self) -> float | None:
        """Time in seconds per generated token of a request; None without speculative decoding."""
        return self.seconds / self.tokens_per_decode if self.tokens_per_decode else None

    def to_json(self) -> JsonObject:
        """Return the step as an entry of the JSON key ``batches``; times are in microseconds."""
        found: JsonObject = {"batch": self.batch, "step_time_us": self.seconds / MICROSECOND}
        if self.per_token is not None:
            found["itl_per_token_us"] = self.per_token / MICROSECOND
        if self.encoder:
            found["encoder_us"] = self.encoder / MICROSECOND
        found |= {"floor_us": self.floor / MICROSECOND, "marks": list(self.marks)}
        if self.ends is not None:
            low, high = self.ends
            found["step_time_low_us"] = low / MICROSECOND
            found["step_time_high_us"] = high / MICROSECOND
        return found


@dataclass(frozen=True, repr=False, eq=False)
class Prediction:
    """Coefficients and step times of one configuration; times are in seconds.

    Attributes:
        deployment: Model, GPU and engine configuration.
        coefficients: Coefficients of the deployment, from the network or from a file.
        memory: Whether the deployment starts on its GPUs, and what their memory contains.
        find_evidence: Function that takes batches and returns the evidence for their step times.
        batches: Batches, as text, whose step times are shown in tables and in JSON.
        encoder: Time that images or audio in prompts add to steps; None without either.
    """

    deployment: Deployment
    coefficients: CoefficientSet
    memory: StartUp
    find_evidence: FindEvidence
    batches: tuple[str, ...] = ()
    encoder: EncoderTime | None = None

    def at(self, *batches: str) -> Prediction:
        """Return a copy of the prediction with other batches in its tables and JSON."""
        return replace(self, batches=batches)

    @property
    def beta(self) -> dict[str, float]:
        """Return the step coefficients by name: times in seconds, or multipliers of features."""
        return dict(zip(STEP_FEATURES, self.coefficients.beta.tolist(), strict=True))

    @property
    def alpha(self) -> dict[str, float]:
        """Return the coefficients of a request's time outside steps, by name, in seconds."""
        return dict(zip(REQUEST_FEATURES, self.coefficients.alpha.tolist(), strict=True))

    @cached_property
    def evidence(self) -> Evidence:
        """Return the intervals of coefficients and batches, and the distance from training data."""
        return self.find_evidence(self.batches)

    @property
    def trust(self) -> str:
        """Return a sentence on errors for similar held-out data, or on a file's calibration."""
        return self.evidence.sentence

    @overload
    def step_time(self, batch: AnyBatch) -> float: ...
    @overload
    def step_time(self, batch: Batches) -> Float[np.ndarray, " batches"]: ...
    def step_time(self, batch: AnyBatch | Batches) -> float | Float[np.ndarray, " batches"]:
        """Return the predicted step time of a batch in seconds, or an array for several batches.

        Args:
            batch: Batch such as ``"32 decode @ 700"`` (32 requests after 700 tokens each) or
                ``"1 prefill 512 @ 0 + 16 decode @ 600"``, or a list of batches.

        Raises:
            PinnError: If a batch is not in one of these forms.
        """
        batches = _parsed(batch)
        seconds = batch_seconds(self.coefficients.beta, self.deployment, batches)
        seconds = seconds + [self._encoder_s(each) for each in batches]
        return float(seconds[0]) if not isinstance(batch, list) else seconds

    @overload
    def floor(self, batch: AnyBatch) -> float: ...
    @overload
    def floor(self, batch: Batches) -> Float[np.ndarray, " batches"]: ...
    def floor(self, batch: AnyBatch | Batches) -> float | Float[np.ndarray, " batches"]:
        """Return a step's roofline lower bound in seconds; arguments as in :meth:`step_time`."""
        seconds = self._floors(_parsed(batch))
        return float(seconds[0]) if not isinstance(batch, list) else seconds

    @overload
    def interval(self, batch: str) -> Ends: ...
    @overload
    def interval(self, batch: list[str]) -> list[Ends]: ...
    def interval(self, batch: str | list[str]) -> Ends | list[Ends]:
        """Return (lower, upper) end of the 90 % interval of a step time, in seconds.

        For several batches, a list of such pairs is returned.

        Raises:
            PinnError: If the coefficients have no intervals.
        """
        timed = self.at(*([batch] if isinstance(batch, str) else batch))
        found = [step.ends for step in timed.steps if step.ends is not None]
        if len(found) < len(timed.batches):
            missing = timed.evidence.missing or "the file has no posterior"
            raise PinnError(f"the prediction has no intervals: {missing}")
        return found[0] if isinstance(batch, str) else found

    @cached_property
    def steps(self) -> tuple[StepTime, ...]:
        """Return the step time of each batch in ``batches``, with its interval."""
        parsed = [parse_batch(text) for text in self.batches]
        seconds = batch_seconds(self.coefficients.beta, self.deployment, parsed).tolist()
        encoders, floors = map(self._encoder_s, parsed), self._floors(parsed).tolist()
        marks = batch_marks(parsed, self.deployment, self.memory.fit)
        far = self.evidence.far or [()] * len(parsed)
        tokens = [self._tokens(batch) for batch in parsed]
        ends: Sequence[Ends | None] = self.evidence.step_ends or [None] * len(parsed)
        rows = zip(self.batches, seconds, encoders, floors, tokens, marks, far, ends, strict=True)
        return tuple(
            StepTime(
                text, time + encoder, floor, step, decode, (*limits, *beyond),
                None if each is None else self._ends(time, encoder, floor, each), encoder,
            )
            for text, time, encoder, floor, (step, decode), limits, beyond, each in rows
        )  # fmt: skip

    def _encoder_s(self, batch: Batch) -> float:
        """Return the time that images or audio add to a step with this batch, in seconds."""
        return 0.0 if self.encoder is None else self.encoder.of_batch(batch)

    def _floors(self, batches: Sequence[Batch]) -> Float[np.ndarray, " batches"]:
        """Return the roofline lower bound of each batch's step in seconds, with the encoder."""
        found = batch_floor_seconds(self.deployment, batches)
        if self.encoder is None:
            return found
        return found + [self.encoder.floor_s * self.encoder.begun_in(each) for each in batches]

    def _ends(self, seconds: float, encoder: float, floor: float, ends: Ends) -> Ends:
        """Return the interval of a step time in seconds; its lower end is at least ``floor``.

        ``ends`` are relative to ``seconds``; the ``encoder`` time has a separate interval.
        """
        of_encoder = (1.0, 1.0) if self.encoder is None else self.encoder.ends
        low, high = (seconds * a + encoder * b for a, b in zip(ends, of_encoder, strict=True))
        return max(low, min(floor, seconds + encoder)), high

    def _tokens(self, batch: Batch) -> tuple[float, float | None]:
        """Return a step's number of tokens and, with speculative decoding, tokens per decode."""
        drafts = self.deployment.recipe.speculation
        if drafts is None or all(batch.is_prefill):
            return float(batch.tokens), None
        counts = zip(batch.entry_counts, batch.is_prefill, strict=True)
        decodes = sum(count for count, is_prefill in counts if not is_prefill)
        gain = drafts.tokens_per_step if drafts.acceptance else None
        return batch.tokens + decodes * ((gain or 1.0) - 1), gain

    def to_json(self) -> dict[str, object]:
        """Return the document of ``pinn coefficients --json``.

        Values are in SI units, unless the key names another unit (``step_time_us``,
        ``gib_per_gpu``).

        - Configuration: ``schema``, ``model``, ``gpu``, ``precisions``, ``serving``, ``named``,
          ``asked_as``, ``sampling``, ``recipe`` (``value``, ``set_by`` and ``source`` of each
          setting).
        - Coefficients: ``beta`` and ``alpha``, each by name with ``value`` and ``unit``, optionally
          ``low``, ``high`` and ``base``, and for alpha ``taught``. Optionally ``covariance`` and
          ``calibration``.
        - ``memory``: see :class:`~pinn.memory.start_up.StartUp`.
        - ``batches``: a list of ``batch``, ``step_time_us``, ``floor_us`` and ``marks``; with
          intervals also ``step_time_low_us`` and ``step_time_high_us``, with images ``encoder_us``,
          and with speculative decoding ``itl_per_token_us``.
        - ``distance``: see :attr:`Evidence.distance <pinn.surrogate.evidence.Evidence>`.
        - ``intervals``: ``level`` and, per metric, the ends relative to the predicted value; or
          ``missing``.
        - Optionally ``notices``, and ``encoder`` (seconds that images add to a step).
        """
        deployment, evidence = self.deployment, self.evidence
        notice = unread_notice(deployment.serving.engine, deployment.serving.engine_version)
        return {
            **set_to_json(self.coefficients, evidence.coefficient_ends),
            **deployment_facts(deployment),
            "asked_as": deployment.model.title,
            "recipe": deployment.recipe.described(),
            **({} if notice is None else {"notices": [notice]}),
            **({} if self.encoder is None else {"encoder": self.encoder.to_json()}),
            "sampling": asdict(deployment.sampling),
            "memory": self.memory.to_json(),
            "batches": [step.to_json() for step in self.steps],
            "distance": evidence.distance,
            **evidence.intervals_json(),
        }

    def report(self, *batches: str) -> dict[str, object]:
        """Return the document of :meth:`to_json`, with step times of the given batches."""
        return self.at(*batches).to_json()

    def save(self, path: str | Path, *batches: str) -> None:
        """Write the JSON of :meth:`report` to a file for the option ``--coefficients``.

        Raises:
            PinnError: If the file's folder does not exist, or its suffix is not ``.json``.
        """
        save_json(path, self.report(*batches))

    def show(self, recipe: bool = False, betas: bool = False, memory: bool = False) -> None:
        """Print whether the model fits in memory, the step times, and their expected errors.

        Args:
            recipe: Whether to print the resolved engine configuration, with the origin of each
                setting, instead of the times.
            betas: Whether to print the coefficients instead of the times.
            memory: Whether to print the contents of one GPU's memory instead of the times.
        """
        tables.print_prediction(self, recipe, betas, memory)

    def __repr__(self) -> str:
        """Return the text that ``pinn coefficients`` prints, without the final newline."""
        return printed(self.show).rstrip("\n")

    def __str__(self) -> str:
        """Return the text that ``pinn coefficients`` prints, with the final newline."""
        return printed(self.show)

    def _repr_html_(self) -> str:
        """Return the table of step times as HTML, for display in a notebook."""
        return tables.html(self)


def _parsed(batch: AnyBatch | Batches) -> Sequence[Batch]:
    listed = batch if isinstance(batch, list) else [batch]
    for each in listed:
        if not isinstance(each, str | Batch):
            raise PinnError(
                f"a batch must be text such as '32 decode @ 700' or a Batch, got {each!r:.60}"
            )
    return [parse_batch(each) if isinstance(each, str) else each for each in listed]
