"""Interpretation of a model of an unknown family, from the modules that transformers builds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from pinn.errors import PinnError, UnknownLayersError, warn_user
from pinn.specs import model
from pinn.specs.config_fields import LAYER_TYPES, models_file, read_fields
from pinn.specs.huggingface import ReadSettings, longest_context, model_of
from pinn.specs.layers import windows, within
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.modules.attention import is_attention, read_attention, read_recurrent
from pinn.specs.modules.building import BuiltModel, build_text_model
from pinn.specs.modules.weights import (
    Findings,
    UnrecognizedError,
    children,
    is_norm,
    is_table,
    matrices,
    network_of,
    read_experts,
    vectors,
)

if TYPE_CHECKING:
    from torch import nn

#: Minimum inner width of a feed-forward network, relative to the hidden size. A narrower pair of
#: matrices is a gate.
_NARROW = 0.5
_MOST_NAMED = 3


def model_from_modules(
    config: Mapping[str, Any], source: str, settings: ReadSettings, refusal: UnknownLayersError
) -> model.ModelSpec:
    """Read a model from the modules that transformers builds for its config.json.

    A warning lists the recognized modules.

    Args:
        config: Parsed config.json.
        source: File name for error messages.
        settings: Information about the model that the config.json lacks.
        refusal: Error that states why the config's keys do not determine the layers.

    Raises:
        PinnError: If the modules do not determine the layers either.
    """
    try:
        return _read(config, source, settings)
    except PinnError as error:
        reason = str(error).removeprefix(f"{source}: ")
        raise PinnError(f"{refusal}. Read off modules: {reason}") from error


def _read(config: Mapping[str, Any], source: str, settings: ReadSettings) -> model.ModelSpec:
    given = read_fields(config, source)
    other = models_file("types.json")["unlike_modules"].get(given.model_type)
    if other is not None:
        raise PinnError(
            f"{source}: engines and transformers compute the model differently: {other}"
        )
    built = build_text_model(given)
    reader = ModuleReader(built, longest_context(built.fields))
    parts, stem = reader.read()
    stated = given.truth("tie_word_embeddings")
    stem |= {} if stated is None else {"tied_embeddings": stated}
    found = model_of(given, parts, stem, settings)
    warn_user(f"{source}: {reader.note}")
    return found


class ModuleReader:
    """Interpreter of one built model, which recognizes the model's parts one by one."""

    def __init__(self, built: BuiltModel, max_position: int) -> None:
        self._built, self._fields = built, built.fields
        self._findings, self._max_position = Findings(), max_position
        module: Any = built.module
        self._table = module.get_input_embeddings()
        self._head = module.get_output_embeddings()
        self._vocab, self._hidden = self._table.weight.shape

    def read(self) -> tuple[list[model.LayerPart], dict[str, Any]]:
        """Return the parts of all layers, and all other parts as fields of ``ModelSpec``.

        Raises:
            PinnError: If a weight of the model is not recognized, or layers run more than once.
        """
        path, layers = self._layer_list()
        self._check_calls(path)
        reach = [within(each, self._max_position) for each in windows(self._fields, len(layers))]
        parts = [
            part
            for i, layer in enumerate(layers)
            for part in self._layer(i, f"{path}.{i}", layer, reach[i])
        ]
        if not any(part.mixer for part in parts) and not self._findings.unknown:
            self._findings.unknown.append("attention or recurrent mixers")
        self._outside(self._built.module, "", layers)
        self._refuse_unknown()
        is_tied = self._fields.truth("tie_word_embeddings") is True
        if self._head is not None:
            is_tied = self._head.weight is self._table.weight
        return parts, {
            "hidden_size": self._hidden,
            "vocab_size": self._vocab,
            "tied_embeddings": is_tied,
            "max_position": self._max_position,
            "extra_parameters": self._findings.vectors,
            "lookup_parameters": self._findings.tables,
            "side_projections": self._findings.side_projections(),
        }

    @property
    def note(self) -> str:
        """Return a sentence that lists the recognized modules with their number and class."""
        classes, sides = self._findings.classes, self._findings.sides.total()
        parts = [f"{count} {role} ({cls})" for (role, cls), count in classes.items()]
        parts += [f"{sides} other matrices"] * bool(sides)
        return f"read from the modules of {self._built.title}: {', '.join(parts)}"

    def _error(self, text: str) -> PinnError:
        return PinnError(f"{self._fields.source}: {self._built.title}: {text}")

    def _layer_list(self) -> tuple[str, list[nn.Module]]:
        """Return path and modules of the layers, assumed to be the list with the most weights."""
        lists = {
            path: [*each.children()]
            for path, each in self._built.module.named_modules()
            if type(each).__name__ == "ModuleList" and _holds_weights(each)
        }
        if not lists:
            raise self._error("the model has no ModuleList, expected one with its layers")
        outer = [p for p in lists if not any(p.startswith(f"{other}.") for other in lists)]
        path = max(outer, key=lambda p: sum(w.numel() for m in lists[p] for w in m.parameters()))
        return path, lists[path]

    def _check_calls(self, path: str) -> None:
        several = {p: n for p, n in self._built.calls.items() if p.startswith(f"{path}.") and n > 1}
        weighted = [p for p in several if _holds_weights(self._built.module.get_submodule(p))]
        if weighted:
            worst = max(weighted, key=lambda p: several[p])
            count = several[worst]
            raise self._error(
                f"{worst} runs {count} times per step, expected modules that run once"
            )

    def _layer(
        self, index: int, path: str, layer: nn.Module, window: int | None
    ) -> list[model.LayerPart]:
        """Return a layer's parts, one per attention or recurrence; feed-forward parts are last."""
        kinds = self._fields.listed("layer_types")
        found = _LayerFindings(str(kinds[index]) if index < len(kinds) else None, [], [], [])
        self._walk(path, layer, window, found)
        experts = self._with_shared(path, found)
        networks = [experts] if experts is not None else found.networks
        recurrent_last = sorted(found.mixers, key=lambda m: isinstance(m, LinearMixerSpec))
        mixers: list[model.Mixer | None] = [*recurrent_last] or [None]
        pairs = list[model.LayerPart]()
        pairs += [model.LayerPart(index, mixer, None) for mixer in mixers[:-1]]
        pairs.append(model.LayerPart(index, mixers[-1], networks[0] if networks else None))
        return pairs + [model.LayerPart(index, None, network) for network in networks[1:]]

    def _with_shared(self, path: str, found: _LayerFindings) -> model.MoeFfnSpec | None:
        """Return a layer's experts; its dense feed-forward networks count as shared experts."""
        if not found.experts:
            return None
        experts = found.experts[0]
        if len(found.experts) > 1 or any(n.gated != experts.gated for n in found.networks):
            self._findings.unknown.append(f"{path} (several mixtures of experts)")
        width = experts.shared_width + sum(network.width for network in found.networks)
        return replace(experts, shared_width=width)

    def _walk(
        self, path: str, module: nn.Module, window: int | None, found: _LayerFindings
    ) -> None:
        """Recognize a module in a layer or, if its role is unknown, the modules inside it."""
        try:
            if self._recognize(module, window, found):
                return
        except UnrecognizedError as reason:
            self._findings.refuse(path, module, str(reason))
            return
        direct = {n: matrices(c)[""] for n, c in children(module) if [*matrices(c)] == [""]}
        network = network_of([*direct.values()], self._hidden)
        if network is None:
            self._findings.unknown += [f"{path}.{name} {tuple(direct[name])}" for name in direct]
        elif network.gated or network.width >= _NARROW * self._hidden:
            found.networks.append(network)
            self._findings.add("feed-forward networks", module)
        else:
            self._findings.sides.update((n, shape) for n, shape in direct.items())
        for name, parameter in module.named_parameters(recurse=False):
            self._own(f"{path}.{name}", module, parameter.numel(), [*parameter.shape])
        for name, child in children(module):
            if name in direct:
                self._findings.vectors += sum(vectors(child).values())
            else:
                self._walk(f"{path}.{name}", child, window, found)

    def _recognize(self, module: nn.Module, window: int | None, found: _LayerFindings) -> bool:
        findings = self._findings
        if is_norm(module):
            findings.add("norms", module)
        elif (recurrent := read_recurrent(module, self._fields, self._hidden)) is not None:
            found.mixers.append(recurrent)
            findings.add(model.mixer_name(recurrent), module)
            findings.vectors += _beside_matrices(module)
            return True
        elif is_attention(module):
            attention, sides = read_attention(module, self._fields, window)
            if found.kind not in (None, *LAYER_TYPES) and not getattr(attention, "indexer", None):
                raise UnrecognizedError(f"the layer type {found.kind} is not supported")
            found.mixers.append(attention)
            findings.sides.update(("gate", shape) for shape in sides)
            findings.add(model.mixer_name(attention), module)
        elif any(is_attention(child) for _, child in children(module)):
            return False
        elif (experts := read_experts(module, self._fields, self._hidden, findings)) is not None:
            found.experts.append(experts)
            findings.add("mixtures of experts", module)
        else:
            return False
        findings.vectors += sum(vectors(module).values())
        return True

    def _own(self, path: str, module: nn.Module, elements: int, shape: list[int]) -> None:
        if elements == max(shape, default=1):
            self._findings.vectors += elements
        else:
            self._findings.refuse(path, module, f"a weight of {shape}")

    def _outside(self, module: nn.Module, path: str, layers: list[nn.Module]) -> None:
        """Recognize the parts outside layers: norms, position tables, matrices for every token."""
        for name, child in children(module):
            here = f"{path}.{name}".lstrip(".")
            if child is self._table or [*child.children()] == layers:
                continue
            if child is self._head:
                self._findings.vectors += sum(vectors(child).values())
                continue
            if is_norm(child):
                self._findings.vectors += sum(vectors(child).values())
                self._findings.add("norms", child)
            elif is_table(child):
                self._findings.tables += sum(p.numel() for p in child.parameters())
                self._findings.add("tables", child)
            elif [*matrices(child)] == [""]:
                self._findings.sides[name, matrices(child)[""]] += 1
                self._findings.vectors += sum(vectors(child).values())
            elif [*children(child)]:
                self._outside(child, here, layers)
            else:
                self._findings.refuse(here, child)
        for name, parameter in module.named_parameters(recurse=False):
            self._own(f"{path}.{name}", module, parameter.numel(), [*parameter.shape])

    def _refuse_unknown(self) -> None:
        first = {re.sub(r"\.\d+\.", ".", text): text for text in reversed(self._findings.unknown)}
        unknown = [*reversed(first.values())]
        if unknown:
            more = f", and {len(unknown) - _MOST_NAMED} more" * (len(unknown) > _MOST_NAMED)
            listed = "; ".join(unknown[:_MOST_NAMED])
            raise self._error(f"some modules were not recognized: {listed}{more}")


@dataclass
class _LayerFindings:
    kind: str | None
    mixers: list[model.Mixer]
    networks: list[model.DenseFfnSpec]
    experts: list[model.MoeFfnSpec]


def _beside_matrices(module: nn.Module) -> int:
    """Return the number of a recurrent layer's weights outside matrices (convolution, vectors)."""
    every = sum(p.numel() for p in module.parameters())
    return every - sum(prod(shape) for shape in matrices(module).values())


def _holds_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
