"""Bandwidth and latency of the link to host memory, from measured KV transfers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from pinn.common import JsonObject
from pinn.errors import PinnError
from pinn.measurements.kv_transfers import KvTransfers

#: ``_LEVEL``: nominal coverage of the intervals of the link's bandwidth and latency. ``_LEAST``:
#: minimum number of transfers to compute these intervals.
_LEVEL, _LEAST = 0.9, 4


@dataclass(frozen=True)
class HostLink:
    """Bandwidth and latency of the link between GPU and host memory, including copies.

    Attributes:
        bytes_per_s: Bandwidth of one GPU's link, in bytes/s.
        bytes_per_s_interval: 90 % interval of the bandwidth, in bytes/s; None if there are too few
            transfers.
        latency_s: Fixed latency of one transfer, in seconds.
        latency_s_interval: 90 % interval of the latency, in seconds; None if there are too few
            transfers.
        transfers: Number of KV transfers to which the link was fitted.
        gigabytes: Total size of these transfers, in units of 1e9 bytes.
    """

    bytes_per_s: float
    bytes_per_s_interval: tuple[float, float] | None
    latency_s: float
    latency_s_interval: tuple[float, float] | None
    transfers: int
    gigabytes: float

    @property
    def sentence(self) -> str:
        """Return a sentence with the link's bandwidth and latency, and the number of transfers."""
        text = f"link to host memory: {self.bytes_per_s / 1e9:.3g} GB/s"
        if self.bytes_per_s_interval:
            low, high = (each / 1e9 for each in self.bytes_per_s_interval)
            text += f" ({low:.3g} to {high:.3g})"
        text += f", {1e6 * self.latency_s:.3g} us for each transfer"
        return f"{text}, from {self.transfers:,} transfers of {self.gigabytes:.3g} GB"

    def to_json(self) -> JsonObject:
        """Return the bandwidth, latency and their intervals as JSON for a coefficient file."""
        intervals = (self.bytes_per_s_interval, self.latency_s_interval)
        lists = [None if each is None else list(each) for each in intervals]
        names = ("bytes_per_s_interval", "latency_s_interval")
        return vars(self) | dict(zip(names, lists, strict=True))


def fit_host_link(measured: KvTransfers, block_bytes: float) -> HostLink:
    """Fit the bandwidth and the fixed latency of a link to the durations of its transfers.

    If there are few transfers, or all have the same size, only the bandwidth is fitted.

    Args:
        measured: Sizes and durations of measured KV transfers.
        block_bytes: Bytes of a KV block on one GPU, to convert sizes from blocks to bytes.

    Raises:
        PinnError: If the duration of transfers does not increase with their size.
    """
    size = measured.size if measured.in_bytes else measured.size * block_bytes
    columns = np.column_stack([measured.count, size])
    spread = np.linalg.matrix_rank(columns / np.abs(columns).max(0)) > 1
    known = len(size) >= _LEAST and spread
    used = columns if known else columns[:, 1:]
    # Minimize relative errors, because the scatter of transfer times is proportional to the times.
    weights = 1.0 / measured.seconds
    scale = np.abs(used * weights[:, None]).max(0)
    design = used * weights[:, None] / scale
    fitted, *_ = np.linalg.lstsq(design, np.ones(len(size)), rcond=None)
    errors = np.zeros(len(fitted))
    if len(size) > len(fitted):
        left = 1.0 - design @ fitted
        variance = left @ left / (len(size) - len(fitted))
        errors = np.sqrt(variance * np.diag(np.linalg.pinv(design.T @ design)))
    slope, error = fitted[-1] / scale[-1], errors[-1] / scale[-1]
    if not slope > 0:
        raise PinnError(
            "the bandwidth of the link cannot be fitted, because longer transfers do not carry "
            "more bytes: give the KV events of a busier server"
        )
    latency, wide = (fitted[0] / scale[0], errors[0] / scale[0]) if known else (0.0, 0.0)
    reach = float(stats.t.ppf((1 + _LEVEL) / 2, max(len(size) - len(fitted), 1)))
    rates = None
    if known:
        ends = slope + reach * error, max(slope - reach * error, 1e-3 * slope)
        rates = (float(1 / ends[0]), float(1 / ends[1]))
    bounds = (float(latency - reach * wide), float(latency + reach * wide)) if known else None
    return HostLink(
        float(1 / slope), rates, max(float(latency), 0.0), bounds,
        int(measured.count.sum()), float(size.sum()) / 1e9,
    )  # fmt: skip
