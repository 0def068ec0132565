"""Surrogate of a kernel type: a roofline with a correction network. Also linear expert fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from jaxtyping import Float, Real
from scipy.optimize import nnls

from pinn.errors import PinnError
from pinn.kernels import operator as operators
from pinn.kernels.gemm_attention_moe import FAMILIES, Moe
from pinn.kernels.hardware import Coded, Gpus, Hardware, Ids, chip_tags, coded, hardware, is_known
from pinn.kernels.operator import KernelCorrection, Operator, Rows, Sizes, TrainingPlan
from pinn.physics.layer_work import MatMul
from pinn.specs.gpu import GpuSpec

# Linear roofline of MoE kernels with non-negative weights: one fit per GPU and kernel family.
#
# On held-out shapes, the error of this fit is close to the network's, and the geometric mean of
# both predictions is more accurate than either. The fit is a sum of times that grow with work, so
# its prediction never decreases when tokens are added.

#: Units of the terms per expert and per launch, chosen so that fitted weights are of order one.
#: Predictions do not depend on them.
_EXPERT_SECONDS, _LAUNCH_SECONDS = 1e-6, 1e-5


def terms(hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows terms"]:
    """Return the terms of MoE kernels' time in seconds, at datasheet bandwidth and peak FLOP/s.

    The terms are, in this order:

    - a launch of 10 us
    - reading the weights of experts in use
    - computing
    - the maximum of reading and computing
    - gathering and scattering tokens
    - 1 us per used expert, divided by the number of SMs
    - computing tokens beyond 256, about the ridge of an H100 in bf16 (989 TFLOP/s over
      3.35 TB/s: 295 FLOP per byte)
    """
    read, activations, compute = Moe().times(hw, sizes)
    late = np.maximum(1.0 - 256.0 / np.maximum(sizes["tokens"], 1.0), 0.0)
    launch, hit = np.full(len(read), _LAUNCH_SECONDS), sizes["hit"] / hw.sms * _EXPERT_SECONDS
    slower = np.maximum(read, compute)
    return np.stack([launch, read, compute, slower, activations, hit, compute * late], axis=1)


def fit_terms(
    values: Float[np.ndarray, "rows terms"], seconds: Rows, known: Rows | float = 0.0
) -> Float[np.ndarray, " terms"]:
    """Return non-negative weights of terms that minimize the squared relative error of the sum.

    Two rounds of reweighting (Huber, 20 %) limit the influence of outliers. ``known`` is the part
    of ``seconds`` that is already explained.
    """
    rest = 1.0 - known / seconds
    scaled = values / seconds[:, None]
    weight = np.ones(len(seconds))
    solution = np.zeros(values.shape[1])
    for _ in range(3):
        solution, _ = nnls(scaled * weight[:, None], rest * weight)
        error = np.abs(scaled @ solution - rest)
        weight = np.sqrt(np.minimum(1.0, 0.2 / np.maximum(error, 1e-9)))
    return solution


#: Function that returns the time in seconds of a matrix product, given (GPU, format, rows, columns,
#: depth).
Products = Callable[..., Rows]


def multiplied_seconds(
    heads: Real[np.ndarray, " rows"],
    tokens: Rows,
    matmuls: Callable[[int], Iterable[MatMul]],
    products: Products,
) -> Rows:
    """Return the time in seconds of the matrix products (projections) around each row's attention.

    Args:
        heads: Number of heads on this rank, per row.
        tokens: Number of tokens (rows of each matrix product), per row.
        matmuls: Function that takes a number of heads and returns a rank's matrix products.
        products: Function that returns the time in seconds of a matrix product on one GPU.
    """
    found = np.zeros(len(tokens))
    for local in np.unique(heads):
        mine = heads == local
        for each in matmuls(int(local)):
            found[mine] += products(each.weights.name, tokens[mine], each.n, each.k)
    return found


@dataclass(frozen=True)
class RooflineFit:
    """Fitted weights of :func:`terms` by GPU and kernel family, and pooled weights for other pairs.

    Attributes:
        weights: Weights by ``(chip, family)``. Chip ``*`` pools all GPUs of that family; ``("*",
            "*")`` pools all measured experts. Because the terms include the GPU's rates, pooled
            weights are averages of efficiencies.
    """

    weights: dict[tuple[str, str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(
        gpu_names: Sequence[str], gpu_ids: Ids, hw: Hardware, sizes: Sizes, seconds: Rows
    ) -> RooflineFit:
        """Fit the weights of every (GPU, kernel family) pair with rows, and the pooled weights."""
        values = terms(hw, sizes)
        codes = sizes["family"].astype(np.int64)
        groups: dict[tuple[str, str], np.ndarray] = {("*", "*"): np.ones(len(seconds), bool)}
        for code in np.unique(codes):
            groups["*", FAMILIES[code]] = codes == code
            for chip in np.unique(gpu_ids[codes == code]):
                groups[gpu_names[chip], FAMILIES[code]] = (codes == code) & (gpu_ids == chip)
        return RooflineFit({k: fit_terms(values[m], seconds[m]) for k, m in groups.items()})

    def seconds(self, gpu_names: Sequence[str], ids: Ids, hw: Hardware, sizes: Sizes) -> Rows:
        """Return predicted seconds per row, with weights for its GPU and family, or pooled ones."""
        pools = {f: self.weights.get(("*", f), self.weights["*", "*"]) for f in FAMILIES}
        table = np.array(
            [[self.weights.get((g, f), pool) for f, pool in pools.items()] for g in gpu_names]
        )
        return (terms(hw, sizes) * table[ids, sizes["family"].astype(np.int64)]).sum(axis=1)


# Surrogate of one kernel type: a roofline times a network's correction, monotone on a lattice.

#: Assumed share of peak bandwidth and FLOP/s for work beyond the largest lattice sizes.
EXTRAPOLATION_EFFICIENCY = 0.8
_LATTICES_KEPT = 20_000
#: Maximum number of lattice nodes that are evaluated at once; their network inputs take 10 MB.
_ROWS_AT_ONCE = 1 << 15
#: Share of training rows whose GPU name is hidden from the network, so that it learns to predict
#: unknown GPUs.
UNNAMED_SHARE = 0.3


def table_hardware(
    rows: pd.DataFrame, gpus: Gpus, format_column: str
) -> tuple[list[str], Ids, Hardware]:
    """Return the GPUs' names, and each measured row's GPU index and hardware rates."""
    names = sorted(rows["gpu"].unique())
    formats = sorted(rows[format_column].unique())
    ids = pd.Categorical(rows["gpu"], categories=names).codes.astype(np.int64)
    format_ids = pd.Categorical(rows[format_column], categories=formats).codes.astype(np.int64)
    return names, ids, hardware([gpus[n] for n in names], ids, formats, format_ids)


@dataclass(eq=False)
class OperatorSurrogate:
    """Surrogate of one kernel type, for any GPU, number format and size.

    Attributes:
        operator: Physics of the kernel type.
        network: Network that corrects the roofline.
        linear: Linear roofline fit, whose predictions are averaged geometrically with the
            network's; None to use only the network.
        chips: Tags of the GPUs with training data, as :func:`chip_tags` returns them.
    """

    operator: Operator
    network: KernelCorrection
    linear: RooflineFit | None
    chips: Float[np.ndarray, "trained 5"]
    _lattices: dict[tuple[float, ...], Float[np.ndarray, " nodes"]] = field(
        default_factory=dict, init=False
    )

    @staticmethod
    def fit(
        operator: Operator,
        rows: pd.DataFrame,
        gpus: Gpus,
        *,
        seed: int = 0,
        plan: TrainingPlan | None = None,
    ) -> OperatorSurrogate:
        """Return the surrogate of a kernel type, trained on measured rows.

        Raises:
            PinnError: If there are no rows.
        """
        if len(rows) == 0:
            raise PinnError(
                f"the surrogate of {operator.name} kernels cannot be fitted, because its tables "
                "have no usable rows: relax the rules that reject rows in pinn/kernels/tables"
            )
        names, ids, hw = table_hardware(rows, gpus, operator.format_column)
        sizes = operator.measured(rows, hw)
        seconds = rows["seconds"].to_numpy(dtype=np.float64)
        target = np.log(seconds / operator.roofline(hw, sizes))
        unnamed = UNNAMED_SHARE if operator.blanks_unknown_chips else 0.0
        named = np.random.default_rng(seed).random(len(rows)) >= unnamed
        inputs = operator.inputs(replace(hw, known=named), sizes)
        network = operators.train(inputs, target, plan or operator.plan, seed)
        fit = RooflineFit.fit(names, ids, hw, sizes, seconds) if isinstance(operator, Moe) else None
        return OperatorSurrogate(operator, network, fit, chip_tags([gpus[n] for n in names]))

    def direct_log_seconds(
        self, names: Sequence[str], ids: Ids, hw: Hardware, sizes: Sizes, at_once: int = 1 << 16
    ) -> Rows:
        """Return the log of the predicted time of rows, before it is made monotone on a lattice.

        Rounding depends on the number of rows computed at once. Computing one lattice at a time
        makes each prediction independent of the others.
        """
        correction = self.network.predict(self.operator.inputs(hw, sizes), at_once)
        log_time = np.log(self.operator.roofline(hw, sizes)) + correction
        if self.linear is not None:
            log_time = 0.5 * (log_time + np.log(self.linear.seconds(names, ids, hw, sizes)))
        return log_time

    def seconds_as_measured(self, rows: pd.DataFrame, gpus: Gpus) -> Rows:
        """Return the predicted time of measured rows in seconds, under measurement conditions.

        Predictions of experts assume random routing, whereas measurements used balanced routing.
        For such kernel types, the network is evaluated directly under the conditions of the
        measurement.
        """
        names, ids, hw = table_hardware(rows, gpus, self.operator.format_column)
        hw = replace(hw, known=self._known([gpus[n] for n in names])[ids])
        sizes = self.operator.measured(rows, hw)
        if self.operator.measured_unlike_served:
            return np.exp(self.direct_log_seconds(names, ids, hw, sizes))
        chips = Coded(tuple(gpus[n] for n in names), ids)
        return self.seconds(chips, Coded(hw.format_names, hw.format_ids), *sizes.values())

    def seconds(self, gpu: object, form: object, *sizes: object) -> Float[np.ndarray, "..."]:
        """Return the time in seconds of kernels; all arguments broadcast together.

        Formats without separate kernels are treated as weight-only (16-bit math). fp8_block and
        int8 use the times of fp8.

        Args:
            gpu: GPU as a ``GpuSpec``, or one GPU per row as a ``Coded``.
            form: Name of a number format, or one per row as a ``Coded``.
            sizes: Sizes of the kernel, in the order of ``Operator.sizes``. The time is 0 if a size
                on an axis is 0.

        Raises:
            PinnError: If a size is negative or not a number, or a format is unknown.
        """
        operator, chips, forms = self.operator, coded(gpu), coded(form)
        values = {n: self._size(n, s) for n, s in zip(operator.sizes(), sizes, strict=True)}
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
        times = np.exp(operators.interpolate(log_times, operator.nodes, lattice, inside))
        hw, complete = self._rows(chips.options, forms.options, unique[lattice], inside)
        edge = [np.minimum(p, n[-1]) for p, n in zip(inside, operator.nodes, strict=True)]
        beyond = np.any([p > at for p, at in zip(inside, edge, strict=True)], axis=0)
        if beyond.any():
            _, at_edge = self._rows(chips.options, forms.options, unique[lattice], edge)
            more = operator.work_seconds(hw, complete) - operator.work_seconds(hw, at_edge)
            times = times + np.where(beyond, more / EXTRAPOLATION_EFFICIENCY, 0.0)
        times = np.maximum(times, operator.floor(hw, complete))
        return np.where(np.any([p <= 0 for p in points], axis=0), 0.0, times).reshape(shape)

    def _known(self, chips: Sequence[GpuSpec]) -> np.ndarray:
        """Return, for each GPU, whether the network was trained on it and may use its tag."""
        if not self.operator.blanks_unknown_chips:
            return np.ones(len(chips), dtype=bool)
        return is_known(chips, self.chips)

    def _size(self, name: str, size: object) -> np.ndarray:
        value = np.asarray(size, dtype=np.float64)
        if not (value >= 0).all():
            raise PinnError(
                f"the size {name} of the operator {self.operator.name} must be 0 or more, got "
                f"{value.min()}"
            )
        return value

    def _rows(
        self, chips: Sequence[GpuSpec], forms: Sequence[str], keys: np.ndarray, points: list[Rows]
    ) -> tuple[Hardware, dict[str, Rows]]:
        """Return hardware rates and all sizes of rows, from lattice keys and axis positions."""
        operator, ids = self.operator, keys[:, 0].astype(np.int64)
        hw = hardware(chips, ids, forms, keys[:, 1].astype(np.int64))
        hw = replace(hw, known=self._known(chips)[ids])
        sizes = dict(zip(operator.axes, points, strict=True))
        sizes |= {name: keys[:, 2 + i] for i, name in enumerate(operator.shape)}
        return hw, operator.queried(sizes, hw)

    def _lattice_values(
        self, chips: Sequence[GpuSpec], forms: Sequence[str], keys: np.ndarray
    ) -> np.ndarray:
        """Return monotone log times at the nodes, one lattice per key; lattices are cached."""
        names = [(chips[int(k[0])], forms[int(k[1])], *k[2:].tolist()) for k in keys]
        new = [i for i, name in enumerate(names) if name not in self._lattices]
        if len(self._lattices) + len(new) > _LATTICES_KEPT:
            self._lattices.clear()
            new = list(range(len(names)))
        at_once = max(_ROWS_AT_ONCE // math.prod(map(len, self.operator.nodes)), 1)
        for some in (new[i : i + at_once] for i in range(0, len(new), at_once)):
            for i, lattice in zip(some, self._new_lattices(chips, forms, keys[some]), strict=True):
                self._lattices[names[i]] = lattice
        return np.stack([self._lattices[name] for name in names])

    def _new_lattices(
        self, chips: Sequence[GpuSpec], forms: Sequence[str], keys: np.ndarray
    ) -> np.ndarray:
        """Compute and return monotone log times at the nodes, one lattice per key."""
        nodes = operators.node_points(self.operator.nodes)
        size = len(nodes[0])
        repeated, points = np.repeat(keys, size, axis=0), [np.tile(n, len(keys)) for n in nodes]
        hw, sizes = self._rows(chips, forms, repeated, points)
        ids, names = repeated[:, 0].astype(np.int64), [g.name for g in chips]
        values = self.direct_log_seconds(names, ids, hw, sizes, at_once=size)
        values = np.maximum(values, np.log(self.operator.floor(hw, sizes)))
        grid = tuple(len(n) for n in self.operator.nodes)
        return operators.monotone(values.reshape(-1, *grid))


# Routed experts with kernels that the engine does not select by default.
#
# The time of these kernels is that of the engine's default kernel
# (:class:`pinn.kernels.gemm_attention_moe.Moe`) plus a sum of times that grow with the work. The
# non-negative weights of this sum are fitted per GPU and kernel, to kernels of shapes that were
# measured with both.

#: Maximum numbers of ranks and of tokens of a measured row in the fit. Single machines do not serve
#: larger steps, and larger rows would distort the fit.
_MOST_RANKS, _MOST_TOKENS = 16, 16_384
#: Unit in seconds of the fitted weight per expert; see ``_EXPERT_SECONDS``.
_UNTIMED_EXPERT_SECONDS = 1e-7


def _terms(hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows terms"]:
    """Return the terms of the extra time of non-default expert kernels, in seconds.

    The terms are times at the GPU's memory bandwidth and peak FLOP/s, in this order:

    - a launch of 10 us
    - 0.1 us per expert on a rank, used or not, for its entry in a grouped multiplication
    - gathering and scattering the rank's (token, expert) pairs
    - gathering and scattering the pairs of the whole expert-parallel group, for which Triton's
      kernel reserves space
    - reading the weights of experts in use
    - computing
    - computing tokens beyond 256
    """
    read, activations, compute = Moe().times(hw, sizes)
    held = sizes["experts"] / sizes["expert_parallel"] * _UNTIMED_EXPERT_SECONDS
    late = np.maximum(1.0 - 256.0 / np.maximum(sizes["tokens"], 1.0), 0.0)
    launch = np.full(len(read), _LAUNCH_SECONDS)
    group = activations * sizes["expert_parallel"]
    return np.stack([launch, held, activations, group, read, compute, compute * late], axis=1)


@dataclass(frozen=True)
class OtherExperts:
    """Fitted extra time of expert kernels that engines do not select by default.

    Attributes:
        weights: Weights of the terms of the extra time over the engine's default kernel, by (GPU,
            kernels, format); GPU ``*`` pools all measured GPUs.
    """

    weights: dict[tuple[str, str, str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(rows: pd.DataFrame, gpus: Gpus, own: OperatorSurrogate) -> OtherExperts:
        """Fit the measured time in excess of that of the engine's default kernels."""
        ranks = rows["tensor_parallel"] * rows["expert_parallel"]
        rows = rows[(ranks <= _MOST_RANKS) & (rows["tokens"] <= _MOST_TOKENS)]
        if len(rows) == 0:
            return OtherExperts()
        _, _, hw = table_hardware(rows, gpus, Moe.format_column)
        values = _terms(hw, Moe().measured(rows, hw))
        seconds = rows["seconds"].to_numpy(dtype=np.float64)
        known = own.seconds_as_measured(rows, gpus)
        groups: dict[tuple[str, str, str], np.ndarray] = {}
        for named, part in rows.groupby(["kernels", Moe.format_column]):
            kernels, form = map(str, named)
            pool = groups["*", kernels, form] = rows.index.isin(part.index)
            for chip in part["gpu"].unique():
                groups[str(chip), kernels, form] = pool & (rows["gpu"] == chip).to_numpy()
        return OtherExperts(
            {key: fit_terms(values[m], seconds[m], known[m]) for key, m in groups.items()}
        )

    def extra_seconds(
        self, gpu: GpuSpec, form: str, kernels: str, *sizes: object
    ) -> Float[np.ndarray, "..."]:
        """Return the extra time of expert kernels other than the engine's default, in seconds."""
        arrays = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in sizes))
        pooled = self.weights.get(("*", kernels, form))
        weights = self.weights.get((gpu.name, kernels, form), pooled)
        if weights is None:
            return np.zeros(arrays[0].shape)
        rows = np.zeros(arrays[0].size, dtype=np.int64)
        hw = hardware([gpu], rows, [form], rows)
        flat = {name: a.ravel() for name, a in zip(Moe.sizes(), arrays, strict=True)}
        return (_terms(hw, Moe().queried(flat, hw)) @ weights).reshape(arrays[0].shape)
