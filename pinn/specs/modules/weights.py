"""Weights of a module by their shapes: matrices, vectors, tables, and what is none of these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pinn.specs.mixers import Part, Projection

if TYPE_CHECKING:
    from torch import nn


class UnrecognizedError(Exception):
    """Why a module is none of those that have a cost model."""


class Shape(NamedTuple):
    """Output and input width of a matrix."""

    outputs: int
    inputs: int


@dataclass
class Findings:
    """What was found in a model beside mixers and feed-forward networks.

    Attributes:
        vectors: Elements of norms, biases and other vectors, and of small gates.
        tables: Elements of tables beside the embedding, such as those of positions.
        sides: Matrices that every token passes, by name and shape, with their number.
        classes: Number of modules by their class, for each role.
        unknown: Weights that were not recognized, as path and class.
    """

    vectors: int = 0
    tables: int = 0
    sides: Counter[tuple[str, Shape]] = field(default_factory=Counter)
    classes: Counter[tuple[str, str]] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)

    def add(self, role: str, module: nn.Module) -> None:
        """Count a module that was recognized."""
        self.classes[role, type(module).__name__] += 1

    def refuse(self, path: str, module: nn.Module, why: str = "") -> None:
        """Note what was not recognized."""
        self.unknown.append(f"{path} ({type(module).__name__}{': ' if why else ''}{why})")

    def side_projections(self) -> tuple[tuple[int, Projection], ...]:
        """Matrices beside the layers as a model specification has them: whole on every GPU."""
        return tuple(
            (count, Projection(name, (Part(1, shape.outputs),), Part(1, shape.inputs)))
            for (name, shape), count in self.sides.items()
        )


def is_table(module: nn.Module) -> bool:
    """Whether a module looks rows up instead of multiplying."""
    return any("Embedding" in cls.__name__ for cls in type(module).__mro__) and _own(module) != []


def is_norm(module: nn.Module) -> bool:
    """Whether a module scales its input, as norms do: it has vectors alone."""
    return "Norm" in type(module).__name__ and all(p.dim() < 2 for p in module.parameters())


def _own(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(module.named_parameters(recurse=False))


def matrices(module: nn.Module) -> dict[str, Shape]:
    """Return the linear layers in a module, itself included, by path."""
    found: dict[str, Shape] = {}
    for path, each in module.named_modules():
        weight = dict(_own(each)).get("weight")
        if weight is not None and weight.dim() == 2 and not is_table(each):
            rows, columns = weight.shape
            is_transposed = type(each).__name__ == "Conv1D"  # transformers.pytorch_utils, of GPT-2
            found[path] = Shape(columns, rows) if is_transposed else Shape(rows, columns)
    return found


def vectors(module: nn.Module) -> dict[str, int]:
    """Return the elements of each vector in a module, by path."""
    every = module.named_parameters()
    return {path: p.numel() for path, p in every if p.numel() == max(p.shape, default=1)}


def rest(module: nn.Module) -> list[str]:
    """Return the paths of what is neither a matrix of a linear layer nor a vector."""
    known = {f"{path}.weight".lstrip(".") for path in matrices(module)} | set(vectors(module))
    return [path for path, _ in module.named_parameters() if path not in known]


def attribute(module: nn.Module, *names: str) -> int | None:
    """Return the first whole number that a module or one inside it has under a name."""
    values = (getattr(m, name, None) for name in names for m in module.modules())
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool)), None)


def children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children that hold weights, in order."""
    for name, child in module.named_children():
        if next(child.parameters(), None) is not None:
            yield name, child
