"""Endpoints: functions of ``import pinn`` that receive their arguments as a JSON object."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pinn
from pinn.api.prediction import arrow_table
from pinn.common.documents import check_size
from pinn.common.files import given_path, json_text
from pinn.errors import PinnError
from pinn.planning.plan import PlanRequest
from pinn.planning.plan_files import plan_json

#: Maximum number of candidate configurations in one request.
MOST_CANDIDATES = 10_000


#: Arguments that accept a name, mapping or text instead of the path of a file.
_NAMES_TOO = ("model", "gpu", "price")


@dataclass(frozen=True)
class Endpoint:
    """A function that the service calls.

    Attributes:
        name: Name of the function in ``import pinn``, which is also the URL path.
        compute: Function that computes the JSON result from the request's arguments.
        is_long: Whether the function simulates. It then runs in separate processes, so that
            predictions do not have to wait.
        is_kept: Whether responses are cached; true if equal arguments always produce equal
            responses.
        withheld: Arguments that a request may not set, because only the operator of the service
            sets them.
    """

    name: str
    compute: Callable[[dict[str, Any]], bytes]
    is_long: bool = False
    is_kept: bool = True
    withheld: tuple[str, ...] = ()

    @property
    def function(self) -> Callable[..., Any]:
        """Return the function of ``import pinn`` that handles a request."""
        found: Callable[..., Any] = getattr(pinn, self.name)
        return found

    @property
    def arguments(self) -> dict[str, inspect.Parameter]:
        """Return the parameters that a request may set, by name."""
        taken = inspect.signature(self.function).parameters
        return {name: p for name, p in taken.items() if name not in self.withheld}

    def answer(self, body: Mapping[str, Any]) -> bytes:
        """Return the JSON result for a request's arguments, in which null means not given.

        Raises:
            PinnError: If an argument is missing, withheld, unknown or has an invalid value.
        """
        given = {name: value for name, value in body.items() if value is not None}
        for name in self.withheld:
            if name in given:
                told = f"{name} cannot be set in a request, got {given[name]!r:.60}"
                raise PinnError(f"{told}: remove {name}, which is set when the service starts")
        for name, argument in self.arguments.items():
            if argument.default is argument.empty and name not in given:
                raise PinnError(f"{name} is missing: give a value for {name}")
            if "Path" in str(argument.annotation) and name not in _NAMES_TOO:
                _check_exists(name, given.get(name))
        return self.compute(given)


def _check_exists(name: str, value: object) -> None:
    """Raise an error if an argument that must be a path does not name an existing file."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, str) and not given_path(each).exists():
            fault = f"{name} must be a file on the service's machine, got {each!r:.200}"
            raise PinnError(f"{fault}: give the path of an existing file")


def _document(result: object) -> bytes:
    return f"{json_text(result, indent=2)}\n".encode()


def _printed(name: str) -> Callable[[dict[str, Any]], bytes]:
    """Return a function that computes the JSON document that a command prints with ``--json``."""

    def compute(given: dict[str, Any]) -> bytes:
        return _document(getattr(pinn, name)(**given).to_json())

    return compute


def _many(given: dict[str, Any]) -> bytes:
    """Return rows as in ``pinn coefficients --out FILE.json``, and counts of rejection reasons."""
    from pinn.export.coefficient_table import table_json

    configurations, batch = given.pop("configurations"), given.pop("batch", ())
    if isinstance(configurations, list):
        remedy = (
            "split the configurations over several requests, or use 'pinn coefficients --configs'"
        )
        check_size(len(configurations), MOST_CANDIDATES, "the number of configurations", remedy)
    table, reasons = arrow_table(configurations, batch, given)
    refused = json_text(Counter(sorted(reasons))).encode()
    return b'{"rows": ' + table_json(table) + b', "refused": ' + refused + b"}\n"


def _plan(given: dict[str, Any]) -> bytes:
    """Return the document that ``pinn plan --out FOLDER`` writes to plan.json."""
    return plan_json(pinn.plan(**given).plan)


ENDPOINTS = {
    each.name: each
    for each in (
        Endpoint("predict", _printed("predict")),
        Endpoint("predict_many", _many),
        *(
            Endpoint(name, _printed(name), is_long=True)
            for name in ("simulate", "sweep", "simulate_pools", "simulate_fleet")
        ),
        Endpoint(
            "plan", _plan, is_long=True, is_kept=False,
            withheld=("backend", "workers", "address", "cache"),
        ),
    )
}  # fmt: skip


def check_time_budget(body: Mapping[str, Any], timeout_s: float) -> None:
    """Raise an error for a plan whose time budget is not below the service's timeout.

    Raises:
        PinnError: If the time budget is not below the timeout.
    """
    budget = body.get("time_budget", PlanRequest.time_budget)
    if isinstance(budget, str | int | float) and not isinstance(budget, bool):
        try:
            seconds = float(budget)
        except ValueError:
            return  # an invalid budget is reported later, where it is parsed
        if not seconds < timeout_s:
            raise PinnError(
                f"time_budget must be below the service's timeout of {timeout_s:g} s, got "
                f"{seconds:g}: give a shorter time_budget, or start the service with a longer "
                "--timeout"
            )
