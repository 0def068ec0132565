"""Fields of a recipe while they are settled: flags, the engine's defaults, and what set each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from pinn.specs.engine_defaults import Default, engine_default, served_release
from pinn.specs.flags import Flag, flags_of
from pinn.specs.gpu import GpuSpec
from pinn.specs.recipe import (
    ASSUMED,
    DEFAULT,
    DESIGN,
    FLAG,
    NOTHING,
    WHOLE,
    EffectiveRecipe,
    Origin,
)
from pinn.specs.serving import ServingSpec

FLAGS = {each.name: each for each in flags_of(ServingSpec)}
_NOT_GIVEN = {name: Origin(DEFAULT, f"{flag.option} is not given") for name, flag in FLAGS.items()}
_SETTLED = tuple(f.name for f in fields(EffectiveRecipe) if f.name != "origins")


@dataclass
class RecipeFields:
    """Fields of a recipe as they are settled, each with what set it.

    Attributes:
        serving: The engine's flags.
        gpu: What it runs on.
        model_type: ``model_type`` of the model's config.json where a default depends on it.
        said_by: Flag to who gave it.
        values: Settled fields.
        origins: What set each of them.
    """

    serving: ServingSpec
    gpu: GpuSpec
    model_type: str
    said_by: Mapping[str, str]
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Release whose defaults hold."""
        return served_release(self.serving.engine, self.serving.engine_version)

    def put(self, name: str, value: Any, text: str, kind: str = DESIGN) -> None:
        """Settle a field."""
        self.values[name], self.origins[name] = value, Origin(kind, text)

    def take(self, name: str, flag: str, read: Callable[[Any], Any] | None = None) -> Any:
        """Settle a field by a flag, or by its default."""
        value, origin = self.look_up(flag)
        self.values[name] = value if read is None else read(value)
        self.origins[name] = origin
        return self.values[name]

    def default(self, name: str) -> Default:
        """The line of the defaults' table that holds."""
        serving = self.serving
        return engine_default(
            serving.engine,
            name,
            self.version,
            self.gpu,
            serving.tensor_parallel_size,
            self.model_type,
        )

    def look_up(self, name: str) -> tuple[Any, Origin]:
        """The value of a flag and what set it."""
        flag, given = FLAGS.get(name), getattr(self.serving, name, None)
        if given not in (None, "", "auto") and (flag is None or given != flag.default):
            return given, Origin(FLAG, self._said(flag, name))
        if flag is not None and flag.default not in (None, ""):
            return given, _NOT_GIVEN[name]
        return _default(self.default(name))

    def put_graphs(
        self,
        tokens: int,
        requests: int,
        sizes: tuple[int, ...],
        origin: Origin,
        of_decodes: str = WHOLE,
    ) -> None:
        """Settle what is launched as CUDA graphs; nothing with ``--enforce-eager``."""
        if self.serving.enforce_eager:
            tokens, requests, sizes, of_decodes = 0, 0, (), NOTHING
            origin = self.look_up("enforce_eager")[1]
        for name, value in (
            ("graph_tokens", tokens), ("graph_requests", requests), ("graph_sizes", sizes),
            ("decode_graphs", of_decodes),
        ):  # fmt: skip
            self.values[name], self.origins[name] = value, origin

    def _said(self, flag: Flag | None, name: str) -> str:
        if name in self.said_by:
            return self.said_by[name]
        return flag.spelled_for(self.serving.engine) if flag else name

    def recipe(self) -> EffectiveRecipe:
        """The recipe, once every field is settled."""
        return EffectiveRecipe(
            **{name: self.values[name] for name in _SETTLED},
            origins={name: self.origins[name] for name in _SETTLED},
        )


@lru_cache(maxsize=16384)
def _default(found: Default) -> tuple[Any, Origin]:
    """The value of a default and its source."""
    flag = FLAGS.get(found.flag)
    value = flag.read(found.value) if flag else found.value == "yes"
    return value, Origin(ASSUMED if found.assumed else DEFAULT, found.source)
