"""GPU prices: rented by the hour, or purchased and depreciated over several years."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pinn.common.documents import CsvTable
from pinn.common.files import given_path
from pinn.common.numbers import exact, number
from pinn.errors import PinnError
from pinn.simulator.workloads.yaml_spec import Number, Strict, check, read_mapping
from pinn.specs.gpu import load_gpu

#: Number of hours of a mean year, 365.25 days.
HOURS_PER_YEAR = 8766
_LAYOUT = (
    "write 'H100: 2.5', 'H100: {per_hour: 2.5}' or 'H100: {purchase_price: 30000, years: 4}', or a "
    "CSV file with the columns gpu, per_hour, purchase_price and years"
)
_SUFFIXES = (".csv", ".yaml", ".yml", ".json")
_COLUMNS = ("gpu", "per_hour", "purchase_price", "years")


@dataclass(frozen=True)
class Price:
    """Price of a rented or purchased GPU.

    Attributes:
        per_hour: Price per GPU-hour, in the user's currency.
        purchase: Purchase price of the GPU; None for a rented GPU.
        years: Number of years over which the purchase is depreciated; None for a rented GPU.
    """

    per_hour: float
    purchase: float | None = None
    years: float | None = None

    @property
    def origin(self) -> str:
        """Formula for the hourly price from the purchase price; empty for a rented GPU."""
        if self.purchase is None or self.years is None:
            return ""
        return (
            f"{number(self.per_hour)} = {exact(self.purchase)} / ({exact(self.years)} years x "
            f"{HOURS_PER_YEAR:,} hours), excluding power and space"
        )


class _Entry(Strict):
    """Entry in a price file: an hourly price, or a purchase price with its years of use."""

    per_hour: Number | None = None
    purchase_price: Number | None = None
    years: Number | None = None


def bought(purchase: float, years: float) -> Price:
    """Return the price of a purchased GPU, spread evenly over all hours of ``years`` years."""
    return Price(purchase / (years * HOURS_PER_YEAR), purchase, years)


def read_prices(
    rented: str | Path | Mapping[str, float] = "",
    purchased: str | Mapping[str, float] = "",
    years: float | None = None,
) -> dict[str, Price]:
    """Return the price of each GPU, by the GPU's full name.

    Args:
        rented: Prices per GPU-hour, as a mapping or a string such as ``H100=2.5 H200=3.2``; or the
            path of a file with hourly or purchase prices.
        purchased: Purchase price of each GPU, as a mapping or a string.
        years: Number of years over which ``purchased`` GPUs are depreciated.

    Raises:
        PinnError: If a price is not positive, a GPU has two prices, or a purchase price lacks its
            number of years.
    """
    found: dict[str, Price] = {}
    path = _file(rented)
    pairs = _from_file(path) if path else _hourly(_pairs("--price", rented))
    for name, price in [*pairs, *_purchases(_pairs("--purchase-price", purchased), years)]:
        gpu = load_gpu(name).name
        if (other := found.setdefault(gpu, price)) != price:
            costs = f"{other.per_hour:g} and {price.per_hour:g}"
            raise PinnError(f"{gpu} has the prices {costs} per hour: give one price with --price")
    return found


def _file(given: str | Path | Mapping[str, float]) -> Path | None:
    """Return the path of a price file; None if prices are given directly."""
    if not isinstance(given, Mapping | str | Path):
        example = "give prices per hour such as 'H100=2.5 H200=3.2', or the path of a file"
        raise PinnError(f"price must have prices of GPUs, got {given!r:.60}: {example}")
    if isinstance(given, Mapping) or (isinstance(given, str) and ("=" in given or not given)):
        return None
    path = given_path(given)
    is_named = path.suffix.lower() in _SUFFIXES
    return path if isinstance(given, Path) or is_named or path.is_file() else None


def _pairs(option: str, given: str | Path | Mapping[str, float]) -> list[tuple[str, float]]:
    """Parse prices, a mapping or a string such as ``H100=2.5``, into (GPU, price) pairs."""
    listed: list[tuple[str, object]]
    if isinstance(given, Mapping):
        listed = list(given.items())
    else:
        parted = (part.partition("=") for part in str(given).replace(",", " ").split())
        listed = [(name, value if equals else "") for name, equals, value in parted]
    found = []
    for name, value in listed:
        told = f"{name}={value}" if value != "" else name
        found.append((name, _positive(value, f"{option}: cannot read {told!r}")))
    return found


def _positive(value: object, fault: str) -> float:
    try:
        read = float(str(value))
    except ValueError:
        read = math.nan
    if not 0 < read < math.inf:
        raise PinnError(f"{fault}: write 'H100=2.5 H200=3.2'")
    return read


def _hourly(pairs: list[tuple[str, float]]) -> list[tuple[str, Price]]:
    return [(name, Price(value)) for name, value in pairs]


def _purchases(pairs: list[tuple[str, float]], years: float | None) -> list[tuple[str, Price]]:
    if not pairs:
        if years is not None:
            raise PinnError(
                "--purchase-years is given without --purchase-price: give both, or omit both"
            )
        return []
    if years is None or not 0 < years < math.inf:
        got = "" if years is None else f", got {years:g}"
        fault = f"--purchase-price needs --purchase-years, a positive number of years{got}"
        raise PinnError(f"{fault}: give the years over which GPUs are written off")
    return [(name, bought(value, years)) for name, value in pairs]


def _from_file(path: Path) -> Iterator[tuple[str, Price]]:
    """Yield (GPU, price) from a CSV, YAML or JSON file."""
    entries = _csv_entries(path) if path.suffix.lower() == ".csv" else _tree_entries(path)
    for where, name, entry in entries:
        given = entry.model_dump(exclude_none=True)
        is_fine = all(0 < value < math.inf for value in given.values())
        match entry.per_hour, entry.purchase_price, entry.years:
            case float(per_hour), None, None if is_fine:
                yield name, Price(per_hour)
            case None, float(purchase), float(years) if is_fine:
                yield name, bought(purchase, years)
            case _:
                got = ", ".join(f"{key} {value:g}" for key, value in given.items()) or "none"
                raise PinnError(
                    f"{path}: {where}: expected a positive price per hour, or a positive purchase "
                    f"price and years, got {got}: {_LAYOUT}"
                )


def _tree_entries(path: Path) -> Iterator[tuple[str, str, _Entry]]:
    for name, value in read_mapping(path).items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        yield name, name, check(_Entry, {"per_hour": value} if is_number else value, path, _LAYOUT)


def _csv_entries(path: Path) -> Iterator[tuple[str, str, _Entry]]:
    table = CsvTable(path)
    unknown = [name for name in table.names if name not in _COLUMNS]
    if unknown or "gpu" not in table.names:
        fault = f"the column {unknown[0]!r} is unknown" if unknown else "the column gpu is missing"
        raise PinnError(f"{path}: {fault}: {_LAYOUT}")
    for line, cells in table.rows():
        row = {name: text.strip() for name, text in zip(table.names, cells, strict=True)}
        given = {name: text for name, text in row.items() if name != "gpu" and text}
        yield f"line {line}", row["gpu"], check(_Entry, given, path, _LAYOUT)
