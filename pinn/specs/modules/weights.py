"""Weights of a PyTorch module, classified by shape: matrices, vectors, tables and experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pinn.specs.config_fields import ConfigFields
from pinn.specs.mixers import Part, Projection
from pinn.specs.model import DenseFfnSpec, MoeFfnSpec

if TYPE_CHECKING:
    from torch import nn


class UnrecognizedError(Exception):
    """Error that states why a module's time cannot be predicted."""


class Shape(NamedTuple):
    """Output width and input width of a weight matrix."""

    outputs: int
    inputs: int


@dataclass
class Findings:
    """Weights of a model outside attention, recurrent layers and feed-forward networks.

    Attributes:
        vectors: Number of elements of norms, biases, other vectors and small gates.
        tables: Number of elements of tables other than the embedding, such as position tables.
        sides: Number of other matrices by which every token is multiplied, by name and shape.
        classes: Number of recognized modules, by role and class name.
        unknown: Weights that were not recognized, as text with path and class.
    """

    vectors: int = 0
    tables: int = 0
    sides: Counter[tuple[str, Shape]] = field(default_factory=Counter)
    classes: Counter[tuple[str, str]] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)

    def add(self, role: str, module: nn.Module) -> None:
        """Count a recognized module under its role."""
        self.classes[role, type(module).__name__] += 1

    def refuse(self, path: str, module: nn.Module, why: str = "") -> None:
        """Record that the weights of a module were not recognized, and why."""
        self.unknown.append(f"{path} ({type(module).__name__}{': ' if why else ''}{why})")

    def side_projections(self) -> tuple[tuple[int, Projection], ...]:
        """Return (number, matrix) of the matrices outside layers, replicated on every GPU."""
        return tuple(
            (count, Projection(name, (Part(1, shape.outputs),), Part(1, shape.inputs)))
            for (name, shape), count in self.sides.items()
        )


def is_table(module: nn.Module) -> bool:
    """Return whether a module looks up rows of a table instead of multiplying by a matrix."""
    return any("Embedding" in cls.__name__ for cls in type(module).__mro__) and _own(module) != []


def is_norm(module: nn.Module) -> bool:
    """Return whether a module is a norm: it has vectors and no other weights."""
    return "Norm" in type(module).__name__ and all(p.dim() < 2 for p in module.parameters())


def _own(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(module.named_parameters(recurse=False))


def matrices(module: nn.Module) -> dict[str, Shape]:
    """Return the shapes of linear layers by path: those in a module, and the module itself."""
    found: dict[str, Shape] = {}
    for path, each in module.named_modules():
        weight = dict(_own(each)).get("weight")
        if weight is not None and weight.dim() == 2 and not is_table(each):
            rows, columns = weight.shape
            # Conv1D from transformers.pytorch_utils, as in GPT-2, stores the transposed matrix.
            is_transposed = type(each).__name__ == "Conv1D"
            found[path] = Shape(columns, rows) if is_transposed else Shape(rows, columns)
    return found


def vectors(module: nn.Module) -> dict[str, int]:
    """Return the number of elements of each vector in a module, by path."""
    every = module.named_parameters()
    return {path: p.numel() for path, p in every if p.numel() == max(p.shape, default=1)}


def rest(module: nn.Module) -> list[str]:
    """Return the paths of a module's weights that are neither linear layers nor vectors."""
    known = {f"{path}.weight".lstrip(".") for path in matrices(module)} | set(vectors(module))
    return [path for path, _ in module.named_parameters() if path not in known]


def attribute(module: nn.Module, *names: str) -> int | None:
    """Return the first whole number among attributes of a module or of a module inside it."""
    values = (getattr(m, name, None) for name in names for m in module.modules())
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool)), None)


def children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) of each child module that has weights, in order."""
    for name, child in module.named_children():
        if next(child.parameters(), None) is not None:
            yield name, child


# Recognition of feed-forward networks and mixtures of experts by the shapes of their matrices.

_TOP_K = ("top_k", "moe_top_k", "num_experts_per_tok", "num_selected_experts", "topk")
_EXPERTS = ("moe_num_experts", "num_experts", "n_routed_experts", "num_local_experts")


def network_of(shapes: Sequence[Shape], stream: int) -> DenseFfnSpec | None:
    """Return the feed-forward network that two or three matrices form; None if they form none.

    >>> network_of([Shape(512, 128), Shape(512, 128), Shape(128, 512)], 128)
    DenseFfnSpec(width=512, gated=True)
    >>> network_of([Shape(128, 512), Shape(1024, 128)], 128)
    DenseFfnSpec(width=512, gated=True)
    """
    for i, down in enumerate(shapes):
        ups = [*shapes[:i], *shapes[i + 1 :]]
        if down.outputs != stream or any(up.inputs != stream for up in ups):
            continue
        widths = [up.outputs / down.inputs for up in ups]
        if widths in ([1], [2], [1, 1]):
            return DenseFfnSpec(down.inputs, widths != [1])
    return None


class Experts(NamedTuple):
    """Routed experts: their number, their input and output width, and one expert's network."""

    number: int
    stream: int
    network: DenseFfnSpec


def experts_of(module: nn.Module, hidden: int) -> Experts | None:
    """Return the routed experts in a module's tensors or its children; None if it has none.

    Experts are stored as three-dimensional tensors, as lists of networks with equal shapes, or
    (DBRX) as matrices in which the rows of all experts are concatenated.
    """
    own = [*module.parameters(recurse=False)]
    own += [p for _, child in children(module) for p in child.parameters(recurse=False)]
    stacks = [tuple(p.shape) for p in own if p.dim() == 3]
    if len(stacks) in (2, 3):
        return _stacked(stacks, hidden)
    number = attribute(module, *_EXPERTS) or 0
    flat = [tuple(p.shape) for p in module.parameters(recurse=False) if p.dim() == 2]
    if number > 1 and len(flat) == 3 and len(set(flat)) == 1 and flat[0][0] % number == 0:
        return _stacked([(number, rows // number, width) for rows, width in flat], hidden)
    every = [tuple(matrices(child).values()) for _, child in children(module)]
    if type(module).__name__ == "ModuleList" and len(every) > 1 and len(set(every)) == 1:
        network = network_of(every[0], hidden)
        return None if network is None else Experts(len(every), hidden, network)
    return None


def _stacked(stacks: Sequence[tuple[int, ...]], hidden: int) -> Experts | None:
    """Return the experts in stacked matrices (number, rows, columns), the down projection last."""
    if len({number for number, _, _ in stacks}) > 1:
        return None
    for stream in (hidden, *stacks[-1][1:]):
        if any(stream not in stack[1:] for stack in stacks):
            continue
        widths = [b if a == stream else a for _, a, b in stacks]
        shapes = [*(Shape(width, stream) for width in widths[:-1]), Shape(stream, widths[-1])]
        network = network_of(shapes, stream)
        if network is not None:
            return Experts(stacks[0][0], stream, network)
    return None


def holder_of_experts(module: nn.Module, hidden: int) -> tuple[nn.Module, Experts] | None:
    """Return the module that has the experts' tensors: the mixture, or one inside it."""
    named = [child for name, child in children(module) if "experts" in name]
    inner = [child for each in named for _, child in children(each)]
    for each in (*named, *inner, module):
        experts = experts_of(each, hidden)
        if experts is not None:
            return each, experts
    return None


def read_experts(
    module: nn.Module, fields: ConfigFields, hidden: int, findings: Findings
) -> MoeFfnSpec | None:
    """Return the mixture of experts in a module; None for a module without routed experts.

    Raises:
        UnrecognizedError: If a weight belongs to neither an expert, the router nor a shared expert.
    """
    held = holder_of_experts(module, hidden)
    if held is None:
        return None
    holder, (number, stream, network) = held
    own = _own_weights(module, holder)
    beside: dict[str, list[Shape]] = {}
    for path, shape in matrices(module).items():
        if id(module.get_submodule(path).weight) not in own:
            beside.setdefault(path.rpartition(".")[0], []).append(shape)
    shared, latent, routers = 0, [], 0
    for path, shapes in beside.items():
        found = network_of(shapes, hidden)
        if found is not None and found.gated == network.gated:
            shared += found.width
            continue
        for shape in shapes:
            routers += shape == Shape(number, hidden)
            latent += [shape] if set(shape) == {stream, hidden} and stream != hidden else []
            if shape == Shape(1, hidden):
                findings.vectors += hidden
            elif shape not in (Shape(number, hidden), *latent):
                name = path or "a matrix"
                raise UnrecognizedError(
                    f"the mixture of experts has {name} of shape {tuple(shape)}, which is neither "
                    "an expert nor a router"
                )
    if routers != 1 or len(latent) != 2 * (stream != hidden):
        raise UnrecognizedError(
            f"the mixture of {number} experts has {routers} routers, expected one"
        )
    _check_rest(module, own, number)
    top_k = attribute(module, *_TOP_K) or fields.integer("top_k")
    width = None if stream == hidden else stream
    router = fields.is_type("fp32_router")
    return MoeFfnSpec(number, top_k, network.width, shared, network.gated, width, router)


def _own_weights(module: nn.Module, holder: nn.Module) -> set[int]:
    """Return the ids of the experts' weight tensors that belong to the mixture's module itself."""
    return {id(p) for p in holder.parameters() if holder is not module or p.dim() == 3}


def _check_rest(module: nn.Module, own: set[int], number: int) -> None:
    """Check that the role of every weight of a mixture of experts is known."""
    for path in rest(module):
        parameter = module.get_parameter(path)
        is_bias = parameter.dim() == 2 and "bias" in path and parameter.shape[0] == number
        if id(parameter) not in own and not is_bias:
            shape = tuple(parameter.shape)
            raise UnrecognizedError(f"the weight {path} of shape {shape} has an unknown role")
