"""Matrix multiplications."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from pinn.kernels.hardware import Hardware
from pinn.kernels.lattice import octaves
from pinn.kernels.network import TrainingPlan
from pinn.kernels.operator import Operator, Rows, Sizes, ceiling_share, logarithm
from pinn.kernels.tables.work import gemm_work

#: The shortest product of the A100's and H100's tables (2.45 us); on Blackwell 1.5 to 1.8. The
#: correction is learned on top.
LAUNCH_SECONDS = 2.5e-6
# Narrower matrices are launches; the tables' kernels for them do not order by size. Quarters of an
# octave hold the usual widths (1280, 1792, 3584, 14336, ...).
_WIDTHS = np.unique(
    np.concatenate([octaves(64, 1024, 2), octaves(1024, 32768, 4), octaves(32768, 262144, 2)])
)
_DEPTHS = _WIDTHS[(_WIDTHS >= 128) & (_WIDTHS <= 65536)]
_TOKENS = np.concatenate([[1.0], octaves(2, 65536, 2)])


class Gemm(Operator):
    """``[m, k] x [k, n]``, the second operand in the format of the weights."""

    name = "gemm"
    axes = ("m", "n", "k")
    nodes = (_TOKENS, _WIDTHS, _DEPTHS)
    shape = ()
    format_column = "precision"
    group = ("n", "k")
    plan = TrainingPlan(
        rows=300_000,
        epochs=40,
        batch=8192,
        learning_rate=5e-3,
        width=96,
        depth=3,
        bound=4.0,
    )

    def _times(self, hw: Hardware, sizes: Sizes) -> tuple[Rows, Rows, Rows]:
        work = gemm_work(sizes["m"], sizes["n"], sizes["k"], hw.element_bytes)
        return (
            work.read_bytes / hw.bandwidth,
            work.activation_bytes / hw.bandwidth,
            work.flop / hw.floor_rate,
        )

    def roofline(self, hw: Hardware, sizes: Sizes) -> Rows:
        """A launch of 2.5 us, and the slower of moving all operands and multiplying."""
        read, activations, compute = self._times(hw, sizes)
        return np.maximum(read + activations, compute) + LAUNCH_SECONDS

    def floor(self, hw: Hardware, sizes: Sizes) -> Rows:
        """The slower of reading the weights and multiplying."""
        read, _, compute = self._times(hw, sizes)
        return np.maximum(read, compute)

    def work_seconds(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Moving all operands plus multiplying."""
        read, activations, compute = self._times(hw, sizes)
        return read + activations + compute

    def inputs(self, hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows inputs"]:
        """Columns in this order.

        Log roofline; log weight, activation, compute and tile-padded compute time; log of their
        sum; log m, n, k, waves; per tile height 64, 128, 256: log waves, wave rounding, row
        rounding; weights over cache; narrowness in n and k; single row; few rows; compute over
        memory; 8-bit and 4-bit flags; rate over the bf16 rate; the chip.
        """
        m, n, k = sizes["m"], sizes["n"], sizes["k"]
        read, activations, compute = self._times(hw, sizes)
        padded = compute * (np.ceil(m / 128) * 128 / m) * (np.ceil(n / 128) * 128 / n)
        columns = [
            np.log(self.roofline(hw, sizes) * 1e6),
            logarithm(read, 0.3e-6),
            logarithm(read, 2.5e-6),
            logarithm(activations, 0.1e-6),
            logarithm(compute, 0.3e-6),
            logarithm(compute, 2.5e-6),
            logarithm(padded, 0.3e-6),
            logarithm(read + activations + compute, 1e-6),
            logarithm(np.maximum(read, compute), 10e-6),
            np.log(m),
            np.log(n),
            np.log(k),
            np.log(m * k),
            np.log(m * n),
            np.log(np.ceil(np.ceil(m / 64) * np.ceil(n / 64) / hw.sms)),
            np.log(np.ceil(np.ceil(m / 128) * np.ceil(n / 128) / hw.sms)),
        ]
        for height in (64, 128, 256):
            waves = np.ceil(m / height) * np.ceil(n / 128) / hw.sms
            columns += [np.log(waves), ceiling_share(waves), ceiling_share(m / height)]
        columns += [
            np.log(n * k * hw.element_bytes / hw.cache_bytes),
            np.minimum(n / 128, 1.0),
            np.minimum(k / 256, 1.0),
            (m == 1).astype(np.float64),
            np.minimum(m, 16.0) / 16.0,
            np.clip(np.log(compute / read), -6.0, 6.0),
            (hw.math == 1).astype(np.float64),
            (hw.math == 2).astype(np.float64),
            np.log2(hw.floor_rate / hw.bf16_rate),
        ]
        return np.concatenate([np.stack(columns, axis=1), hw.descriptors()], axis=1)
