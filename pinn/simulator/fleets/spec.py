"""Description of a fleet in a file: kinds of servers, start-up time, failures, autoscaler."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from pinn.common.documents import read_yaml
from pinn.errors import PinnError
from pinn.simulator.slo import parse_slo

RESEND, LOSE = "resend", "lose"
RATE, LATENCY = "rate", "latency"


@dataclass(frozen=True)
class Failure:
    """Failure of a server, which then restarts.

    Attributes:
        at_s: Time of the failure, in seconds.
        server: Index of the server, from 0, counted across all kinds in the order of the file.
        down_s: Time in seconds from the failure to the beginning of the restart.
    """

    at_s: float
    server: int
    down_s: float = 0.0


@dataclass(frozen=True)
class Autoscaler:
    """Autoscaling policy for one kind of server.

    With ``rate``, the desired number is the request rate over the last ``window_s`` divided by
    ``target``. With ``latency``, it is the minimum number of servers at which predicted latencies
    stay within ``margin`` x the limits.

    Defaults are those of Kubernetes' HorizontalPodAutoscaler (``HPAScalingRules`` of the API schema
    ``autoscaling/v2``, v1.37): a tolerance of 10 %, a window of 300 s for scaling down, and a
    period of 15 s.

    Attributes:
        by: ``rate`` or ``latency``.
        target: Requests per second per server; required for ``rate``.
        slo: Limits on mean TTFT and TPOT, such as ``ttft<=1s, tpot<=50ms``; required for
            ``latency``.
        margin: Fraction of the limits that predicted latencies may reach, such as 0.8.
        kind: Index of the server kind that is scaled, from 0.
        least: Minimum number of servers of this kind.
        most: Maximum number of servers of this kind.
        interval_s: Interval in seconds between decisions.
        window_s: Length of the time window over which the request rate is averaged, in seconds.
        down_after_s: Time in seconds during which fewer servers must suffice before one is stopped.
        tolerance: Relative difference between desired and current number of servers that is
            ignored.
    """

    by: str
    target: float | None = None
    slo: str = ""
    margin: float = 0.8
    kind: int = 0
    least: int = 1
    most: int = 16
    interval_s: float = 15.0
    window_s: float = 60.0
    down_after_s: float = 300.0
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        if self.by not in (RATE, LATENCY):
            raise PinnError(f"the key by of autoscaler must be rate or latency, got {self.by!r}")
        if self.by == RATE and not (self.target or 0) > 0:
            raise PinnError(
                "the key target of autoscaler is missing: give a target in requests/s per server, "
                "which 'by: rate' needs"
            )
        if self.by == LATENCY and not self.limits_s:
            raise PinnError(
                "the key slo of autoscaler is missing: give limits such as 'ttft<=1s, tpot<=50ms', "
                "which 'by: latency' needs"
            )
        if not 1 <= self.least <= self.most:
            raise PinnError(
                "the keys least and most of autoscaler must be at least 1, and least at most most, "
                f"got least {self.least} and most {self.most}"
            )
        for name in ("margin", "interval_s", "window_s"):
            if not getattr(self, name) > 0:
                got = getattr(self, name)
                raise PinnError(f"the key {name} of autoscaler must be above 0, got {got}")

    @property
    def limits_s(self) -> dict[str, float]:
        """Return the limits on mean TTFT and TPOT in seconds, by metric."""
        if not self.slo:
            return {}
        goodput = parse_slo(self.slo, shareless=True).goodput
        limits = goodput.seconds if goodput else {}
        return {name: limits[name] for name in ("ttft", "tpot") if name in limits}


@dataclass(frozen=True)
class FleetSpec:
    """Description of a fleet.

    Attributes:
        kinds: Flags of each kind of server, which override the command's flags; ``replicas`` is the
            number of servers.
        start_up_s: Time in seconds from requesting a server until it accepts requests.
        in_flight: Handling of the requests on a server that fails: with ``resend``, clients resend
            them immediately; with ``lose``, they end with an error.
        failures: Failures of servers.
        autoscaler: Autoscaling policy; None for a fixed fleet.
    """

    kinds: tuple[Mapping[str, Any], ...] = ({},)
    start_up_s: float = 0.0
    in_flight: str = RESEND
    failures: tuple[Failure, ...] = ()
    autoscaler: Autoscaler | None = None

    def __post_init__(self) -> None:
        if self.in_flight not in (RESEND, LOSE):
            raise PinnError(f"the key in_flight must be resend or lose, got {self.in_flight!r}")
        if not 0 <= self.start_up_s < np.inf:
            raise PinnError(
                f"the key start_up_s must be 0 or more and finite, got {self.start_up_s}"
            )
        if not self.kinds:
            raise PinnError(
                "the key kinds is empty: list the flags of each kind of server, or remove the key "
                "kinds"
            )
        for failure in self.failures:
            if not (0 <= failure.at_s < np.inf and 0 <= failure.down_s < np.inf):
                raise PinnError(
                    "the keys at_s and down_s of failures must be 0 or more and finite, got "
                    f"{failure}; give a server that does not return a down_s longer than the load"
                )
        if self.autoscaler and not 0 <= self.autoscaler.kind < len(self.kinds):
            raise PinnError(
                f"the key kind of autoscaler is {self.autoscaler.kind}, but the fleet has "
                f"{len(self.kinds)} kinds: give a number from 0 to {len(self.kinds) - 1}"
            )


def read_fleet(path: Path) -> FleetSpec:
    """Read the description of a fleet from a YAML file.

    Raises:
        PinnError: If the file cannot be read, or if it describes an impossible fleet.
    """
    return fleet_of(read_yaml(path), str(path))


def fleet_of(document: object, where: str) -> FleetSpec:
    """Return the fleet that a parsed YAML document describes.

    Raises:
        PinnError: If the document describes an impossible fleet; the message begins with ``where``.
    """
    if not isinstance(document, Mapping):
        raise PinnError(
            f"{where} must be a mapping with kinds, start_up_s, failures, in_flight or autoscaler, "
            f"got {document!r:.60}"
        )
    try:
        _check_keys(document, FleetSpec, "a fleet")
        given = dict(document)
        if "kinds" in given:
            given["kinds"] = tuple(_mapping(kind, "kinds") for kind in _list(given, "kinds"))
        if "failures" in given:
            given["failures"] = tuple(
                _made(Failure, each, "failures") for each in _list(given, "failures")
            )
        start = given.get("start_up_s", 0)
        if isinstance(start, bool) or not isinstance(start, int | float):
            raise PinnError(f"the key start_up_s must be a number, got {start!r:.60}")
        if given.get("autoscaler") is not None:
            given["autoscaler"] = _made(Autoscaler, given["autoscaler"], "autoscaler")
        return FleetSpec(**given)
    except PinnError as error:
        raise PinnError(f"{where}: {error}") from None


def _check_keys(given: Mapping[Any, Any], kind: type, what: str) -> None:
    known = [f.name for f in fields(kind)]
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        raise PinnError(f"{what} has the unknown key {unknown[0]!r:.40}: use {', '.join(known)}")


def _list(given: Mapping[str, Any], name: str) -> list[Any]:
    found = given[name]
    if not isinstance(found, list):
        raise PinnError(f"the key {name} must be a list, got {found!r:.60}")
    return found


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PinnError(f"{what} must be a mapping of keys to values, got {value!r:.60}")
    return value


def _made(kind: type, value: object, what: str) -> Any:
    """Build a ``Failure`` or an ``Autoscaler`` from a mapping in a fleet file."""
    given = dict(_mapping(value, what))
    _check_keys(given, kind, what)
    needed = [f.name for f in fields(kind) if f.name in ("at_s", "server", "by")]
    missing = [name for name in needed if name not in given]
    if missing:
        raise PinnError(f"{what} lacks the key {missing[0]}: add {missing[0]}")
    for f in fields(kind):
        value = given.get(f.name)
        if f.name in ("by", "slo") or value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise PinnError(f"the key {f.name} of {what} must be a number, got {value!r:.60}")
        if f.type is int and not float(value).is_integer():
            raise PinnError(f"the key {f.name} of {what} must be a whole number, got {value}")
    return kind(**given)
