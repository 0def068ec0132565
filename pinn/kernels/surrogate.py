"""One operator's surrogate: a fitted network on its roofline, made monotone on a lattice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from pinn.errors import PinnError
from pinn.kernels.hardware import Coded, Hardware, chip_tags, coded, hardware, is_known
from pinn.kernels.lattice import interpolate, monotone, node_points
from pinn.kernels.moe import Moe
from pinn.kernels.network import CorrectionNetwork, TrainingPlan, train
from pinn.kernels.operator import Operator, Rows, Sizes
from pinn.kernels.roofline_fit import RooflineFit
from pinn.specs.gpu import GpuSpec

#: Work beyond the lattice is charged at this share of the datasheet's rates.
EXTRAPOLATION_EFFICIENCY = 0.8
_LATTICES_KEPT = 20_000
#: Training rows whose chip is blanked, so that unknown chips are nothing new.
UNNAMED_SHARE = 0.3


def table_hardware(
    rows: pd.DataFrame, gpus: Mapping[str, GpuSpec], format_column: str
) -> tuple[list[str], Int[np.ndarray, " rows"], Hardware]:
    """Chips and formats of measured rows: names of the chips, the rows' index, and the look-up."""
    names = sorted(rows["gpu"].unique())
    formats = sorted(rows[format_column].unique())
    ids = pd.Categorical(rows["gpu"], categories=names).codes.astype(np.int64)
    format_ids = pd.Categorical(rows[format_column], categories=formats).codes.astype(np.int64)
    return names, ids, hardware([gpus[n] for n in names], ids, formats, format_ids)


class OperatorSurrogate:
    """Predicts the time of one kind of kernel for any chip, format and size.

    Args:
        operator: The physics.
        network: The correction.
        linear: A roofline fit to average with, geometrically; None for the network alone.
        chips: Tags of the chips that were trained on, as of ``chip_tags``.
    """

    def __init__(
        self,
        operator: Operator,
        network: CorrectionNetwork,
        linear: RooflineFit | None,
        chips: Float[np.ndarray, "trained 5"],
    ) -> None:
        self.operator = operator
        self.network = network
        self.linear = linear
        self.chips = chips
        self._lattices: dict[tuple[Any, ...], np.ndarray] = {}

    @staticmethod
    def fit(
        operator: Operator,
        rows: pd.DataFrame,
        gpus: Mapping[str, GpuSpec],
        *,
        seed: int = 0,
        plan: TrainingPlan | None = None,
    ) -> OperatorSurrogate:
        """Fit on measured rows.

        Raises:
            PinnError: If there are no rows.
        """
        if len(rows) == 0:
            raise PinnError(f"no measured rows left to fit the {operator.name} surrogate on")
        names, ids, hw = table_hardware(rows, gpus, operator.format_column)
        sizes = operator.measured(rows, hw)
        seconds = rows["seconds"].to_numpy(dtype=np.float64)
        target = np.log(seconds / operator.roofline(hw, sizes))
        unnamed = UNNAMED_SHARE if operator.blanks_unknown_chips else 0.0
        named = np.random.default_rng(seed).random(len(rows)) >= unnamed
        inputs = operator.inputs(replace(hw, known=named), sizes)
        network = train(inputs, target, plan or operator.plan, seed)
        blended = isinstance(operator, Moe)
        fit = RooflineFit.fit(names, ids, hw, sizes, seconds) if blended else None
        return OperatorSurrogate(operator, network, fit, chip_tags([gpus[n] for n in names]))

    def direct_log_seconds(
        self,
        names: Sequence[str],
        ids: Int[np.ndarray, " rows"],
        hw: Hardware,
        sizes: Sizes,
        rows_at_once: int = 1 << 16,
    ) -> Rows:
        """Log of the network's time for complete sizes, before it is made monotone.

        The last bits of a row depend on how many are multiplied at once: one lattice at a time
        gives the same bits whichever others are asked for.
        """
        log_time = np.log(self.operator.roofline(hw, sizes))
        log_time = log_time + self.network.predict(self.operator.inputs(hw, sizes), rows_at_once)
        if self.linear is not None:
            log_time = 0.5 * (log_time + np.log(self.linear.seconds(names, ids, hw, sizes)))
        return log_time

    def seconds_as_measured(self, rows: pd.DataFrame, gpus: Mapping[str, GpuSpec]) -> Rows:
        """Times of measured rows: what held-out errors compare.

        Where rows were measured under other conditions than predictions assume (balanced routing),
        the network is asked directly under theirs.
        """
        names, ids, hw = table_hardware(rows, gpus, self.operator.format_column)
        hw = replace(hw, known=self._known([gpus[n] for n in names])[ids])
        sizes = self.operator.measured(rows, hw)
        if self.operator.measured_unlike_served:
            return np.exp(self.direct_log_seconds(names, ids, hw, sizes))
        chips = Coded(tuple(gpus[n] for n in names), ids)
        return self.seconds(chips, Coded(hw.format_names, hw.format_ids), sizes)

    def seconds(self, gpu: Any, form: Any, sizes: Mapping[str, Any]) -> Float[np.ndarray, "..."]:
        """Times; all arguments broadcast together.

        Args:
            gpu: A ``GpuSpec``, or a ``Coded`` of several.
            form: A precision name, or a ``Coded`` of several.
            sizes: Every axis and shape size of the operator. Zero on an axis is no work, no time.

        Raises:
            PinnError: If a size is missing, negative or not a number, or a format is unknown.
        """
        operator, chips, forms = self.operator, coded(gpu), coded(form)
        values = {n: self._size(sizes, n) for n in (*operator.axes, *operator.shape)}
        codes = np.broadcast_arrays(chips.ids, forms.ids, *(values[n] for n in operator.shape))
        keys = np.stack([c.ravel().astype(np.float64) for c in codes], axis=1)
        unique, which = np.unique(keys, axis=0, return_inverse=True)
        shape = np.broadcast_shapes(codes[0].shape, *(values[n].shape for n in operator.axes))
        if 0 in shape:
            return np.zeros(shape)
        lattice = np.broadcast_to(which.reshape(codes[0].shape), shape).ravel()
        points = [np.broadcast_to(values[n], shape).ravel() for n in operator.axes]
        log_times = self._lattice_values(chips.options, forms.options, unique)
        inside = [np.maximum(p, nodes[0]) for p, nodes in zip(points, operator.nodes, strict=True)]
        times = np.exp(interpolate(log_times, operator.nodes, lattice, inside))
        hw, complete = self._rows(chips.options, forms.options, unique[lattice], inside)
        beyond = np.any(
            [p > nodes[-1] for p, nodes in zip(inside, operator.nodes, strict=True)], axis=0
        )
        if beyond.any():
            edge = [np.minimum(p, n[-1]) for p, n in zip(inside, operator.nodes, strict=True)]
            _, at_edge = self._rows(chips.options, forms.options, unique[lattice], edge)
            more = operator.work_seconds(hw, complete) - operator.work_seconds(hw, at_edge)
            times = times + np.where(beyond, more / EXTRAPOLATION_EFFICIENCY, 0.0)
        times = np.maximum(times, operator.floor(hw, complete))
        return np.where(np.any([p <= 0 for p in points], axis=0), 0.0, times).reshape(shape)

    def _known(self, chips: Sequence[GpuSpec]) -> np.ndarray:
        """Which chips the network may tell apart."""
        if not self.operator.blanks_unknown_chips:
            return np.ones(len(chips), dtype=bool)
        return is_known(chips, self.chips)

    def _size(self, sizes: Mapping[str, Any], name: str) -> np.ndarray:
        if name not in sizes:
            raise PinnError(f"{self.operator.name}: size {name!r} is missing, got {sorted(sizes)}")
        value = np.asarray(sizes[name], dtype=np.float64)
        if not (value >= 0).all():
            raise PinnError(f"{self.operator.name}: {name} must be 0 or more, got {value.min()}")
        return value

    def _rows(
        self, chips: Sequence[GpuSpec], forms: Sequence[str], keys: np.ndarray, points: list[Rows]
    ) -> tuple[Hardware, dict[str, Rows]]:
        """Look-up and complete sizes of rows with the given keys at the given axis positions."""
        operator, ids = self.operator, keys[:, 0].astype(np.int64)
        hw = hardware(chips, ids, forms, keys[:, 1].astype(np.int64))
        hw = replace(hw, known=self._known(chips)[ids])
        sizes = dict(zip(operator.axes, points, strict=True))
        sizes |= {name: keys[:, 2 + i] for i, name in enumerate(operator.shape)}
        return hw, operator.queried(sizes, hw)

    def _lattice_values(
        self, chips: Sequence[GpuSpec], forms: Sequence[str], keys: np.ndarray
    ) -> np.ndarray:
        """Monotone log times at the nodes, one lattice per key; computed once and kept."""
        names = [(chips[int(k[0])], forms[int(k[1])], *k[2:].tolist()) for k in keys]
        new = [i for i, name in enumerate(names) if name not in self._lattices]
        if len(self._lattices) + len(new) > _LATTICES_KEPT:
            self._lattices.clear()
            new = list(range(len(names)))
        if new:
            for i, lattice in zip(new, self._new_lattices(chips, forms, keys[new]), strict=True):
                self._lattices[names[i]] = lattice
        return np.stack([self._lattices[name] for name in names])

    def _new_lattices(
        self, chips: Sequence[GpuSpec], forms: Sequence[str], keys: np.ndarray
    ) -> np.ndarray:
        """Monotone log times at the nodes, one lattice per key."""
        nodes = node_points(self.operator.nodes)
        size = len(nodes[0])
        hw, sizes = self._rows(
            chips, forms, np.repeat(keys, size, axis=0), [np.tile(n, len(keys)) for n in nodes]
        )
        ids = np.repeat(keys[:, 0].astype(np.int64), size)
        names = [g.name for g in chips]
        values = self.direct_log_seconds(names, ids, hw, sizes, rows_at_once=size)
        values = np.maximum(values, np.log(self.operator.floor(hw, sizes)))
        grid = tuple(len(n) for n in self.operator.nodes)
        return monotone(values.reshape(-1, *grid))
