"""Which kernels were measured, and how far a prediction lies from the nearest of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Nearest:
    """The measured kernel that is closest to a predicted one.

    Attributes:
        shape: Its sizes by name; those that vary along a series are the nearest of the series.
        gpu: Chip it was timed on: the predicted one, or another where that has no such table.
        precision: Its number format.
        stretch: Largest ratio between a predicted and its size, in log units: 0 where the kernel
            itself was measured, 0.69 where one size is twice or half of the nearest measured.
    """

    shape: Mapping[str, float]
    gpu: str
    precision: str
    stretch: float


@dataclass(frozen=True)
class MeasuredShapes:
    """Shapes of one kind of kernel: where they were timed and how far along each axis.

    Attributes:
        names: Shape columns.
        axes: Axis columns.
        shapes: Distinct shapes, ``[shapes, names]``.
        low: Smallest measured value per axis, ``[shapes, axes]``.
        high: Largest one.
        tables: (chip, format) pairs that have rows.
        timed: Which pairs have which shape.
    """

    names: tuple[str, ...]
    axes: tuple[str, ...]
    shapes: Float[np.ndarray, "shapes names"]
    low: Float[np.ndarray, "shapes axes"]
    high: Float[np.ndarray, "shapes axes"]
    tables: tuple[tuple[str, str], ...]
    timed: Bool[np.ndarray, "shapes tables"]

    @staticmethod
    def of(
        rows: pd.DataFrame, names: Sequence[str], axes: Sequence[str], format_column: str
    ) -> MeasuredShapes:
        """Collect the shapes of measured rows."""
        grouped = rows.groupby(list(names), sort=True)
        shape_of_row = grouped.ngroup().to_numpy()
        ends = grouped[list(axes)].agg(["min", "max"])
        shapes = np.array([np.atleast_1d(k) for k in ends.index], dtype=np.float64)
        pair = rows["gpu"].astype(str) + "|" + rows[format_column].astype(str)
        codes, labels = pd.factorize(pair, sort=True)
        timed = np.zeros((len(shapes), len(labels)), dtype=bool)
        timed[shape_of_row, codes] = True
        tables = tuple((str(p).split("|")[0], str(p).split("|")[1]) for p in labels)
        return MeasuredShapes(
            tuple(names),
            tuple(axes),
            shapes.reshape(len(shapes), len(names)),
            np.stack([ends[a, "min"].to_numpy(dtype=np.float64) for a in axes], axis=1),
            np.stack([ends[a, "max"].to_numpy(dtype=np.float64) for a in axes], axis=1),
            tables,
            timed,
        )

    def nearest(self, gpu: str, precision: str, sizes: Mapping[str, float]) -> Nearest:
        """The nearest measured kernel.

        It comes from the same chip and format where there is such a table, else from the same
        format, else from the same chip, else from anywhere.
        """
        columns = self._preferred(gpu, precision)
        usable = np.flatnonzero(self.timed[:, columns].any(axis=1))
        want = np.array([float(sizes[n]) for n in self.names])
        # +1 keeps an absent window (0) finite and far from a present one.
        apart = np.abs(np.log((self.shapes[usable] + 1) / (want + 1))).max(axis=1, initial=0.0)
        at = np.array([max(float(sizes[a]), 1e-9) for a in self.axes])
        inside = np.clip(at, self.low[usable], self.high[usable])
        beyond = np.abs(np.log(at / inside)).max(axis=1)
        best = int(np.argmin(np.maximum(apart, beyond)))
        row = usable[best]
        table = next(c for c in columns if self.timed[row, c])
        return Nearest(
            shape=dict(zip(self.names, self.shapes[row].tolist(), strict=True))
            | dict(zip(self.axes, inside[best].tolist(), strict=True)),
            gpu=self.tables[table][0],
            precision=self.tables[table][1],
            stretch=float(max(apart[best], beyond[best])),
        )

    def _preferred(self, gpu: str, precision: str) -> list[int]:
        pairs = list(enumerate(self.tables))
        for matches in (
            [i for i, pair in pairs if pair == (gpu, precision)],
            [i for i, pair in pairs if pair[1] == precision],
            [i for i, pair in pairs if pair[0] == gpu],
        ):
            if matches:
                return matches
        return [i for i, _ in pairs]
