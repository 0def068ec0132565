"""Check of whether a configuration's engine starts, and which single flags make it start."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

from pinn.common import JsonObject
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.labels import hardware_label
from pinn.engines.recipe import FLAGS
from pinn.errors import PinnError
from pinn.memory.kv_cache import (
    DEFAULT_SETTINGS,
    MemoryFit,
    memory_fit,
    smallest_tensor_parallel_size,
)
from pinn.memory.kv_layout import max_model_len
from pinn.memory.ledger import MemoryLedger, memory_ledger
from pinn.memory.logged_cache import with_log
from pinn.memory.startup_log import StartupLog
from pinn.specs.flags import FlagValue, specified
from pinn.units import GIB

#: Limits of remedies. ``_MOST_SHARE``: maximum memory share that a remedy recommends.
#: ``_SHARE_GRAIN``: increment by which remedies raise the memory share. ``_LENGTH_GRAIN_TOKENS``:
#: decrement by which they lower the maximum context.
_MOST_SHARE, _SHARE_GRAIN, _LENGTH_GRAIN_TOKENS = 0.98, 0.01, 256


@dataclass(frozen=True)
class StartUp:
    """Check of whether a configuration's engine starts, with its GPU memory use.

    Attributes:
        deployment: Deployment of the configuration.
        engine: Other engine settings, such as the KV cache size.
        log: Start-up log of a server with this configuration; None if there is none.
    """

    deployment: Deployment
    engine: EngineSpec = DEFAULT_SETTINGS
    log: StartupLog | None = None

    @cached_property
    def fit(self) -> MemoryFit:
        """Return the size of the KV cache: from the log if there is one, otherwise predicted."""
        return memory_fit(self.deployment, self.engine)

    @cached_property
    def predicted(self) -> MemoryFit:
        """Return the predicted size of the KV cache, even if there is a log."""
        return self.fit if self.log is None else memory_fit(self.deployment)

    @cached_property
    def ledger(self) -> MemoryLedger:
        """Return the bytes of one GPU's memory, by use."""
        return memory_ledger(self.deployment, self.engine)

    @cached_property
    def smallest_tensor_parallel_size(self) -> int | None:
        """Return the smallest tensor-parallel size that starts; None if no size does."""
        known = {self.deployment.serving.tensor_parallel_size: self.fit}
        return smallest_tensor_parallel_size(self.deployment, known)

    @cached_property
    def remedies(self) -> tuple[str, ...]:
        """Return flags, each of which makes the engine start at the lower bound of KV memory."""
        return () if self.fit.is_certain else tuple(_remedies(self.deployment, self.engine))

    @property
    def verdict(self) -> str:
        """Return ``"starts"``, ``"may not start"`` or ``"does not start"``."""
        return self.fit.verdict

    @property
    def gib(self) -> dict[str, float]:
        """Return the GiB on one GPU of each use of memory, and of both bounds of the KV cache."""
        found = {name: size / GIB for name, size in self.ledger.sizes().items()}
        if self.fit.byte_ends is not None:
            low, high = self.fit.byte_ends
            sizes = (self.fit.kv_bytes or 0.0, low, high)
            names = ("kv_cache", "kv_cache_low", "kv_cache_high")
            cache = dict(zip(names, sizes, strict=True))
            found |= {name: size / GIB for name, size in cache.items()}
        return found

    def to_json(self) -> JsonObject:
        """Return the object under the key ``memory`` of JSON output.

        The keys of the object are:

        - ``starts``: whether the engine starts even at the lower bound of KV memory.
        - ``verdict``: ``starts``; ``may not start`` (the bounds lie on both sides of the limit); or
          ``does not start`` (even the upper bound is too small).
        - ``sentence``: the verdict as printed, with the KV cache or with the flags to change.
        - ``remedies``: flags, each of which makes the engine start.
        - ``reason``: why the engine does not start, or may not start.
        - ``fits``: whether the engine starts with the predicted memory.
        - ``kv_tokens``: tokens of the KV cache, with the bounds ``kv_tokens_ends``.
        - ``longest_requests``: number of requests of max_model_len tokens that fit simultaneously.
        - ``smallest_tensor_parallel_size``: the smallest one with which the engine starts.
        - ``gib_per_gpu``: ``board``, ``visible`` to CUDA, ``usable`` by the engine, ``weights``,
          ``lora``, ``context``, ``communication``, ``activations``, ``graphs``. If weights leave
          memory, also ``kv_cache``, ``kv_cache_low`` and ``kv_cache_high``.
        """
        fit = self.fit
        return {
            "starts": fit.is_certain,
            "verdict": self.verdict,
            "sentence": str(self),
            "remedies": list(self.remedies),
            "fits": fit.fits,
            "kv_tokens": fit.kv_tokens,
            "kv_tokens_ends": list(fit.token_ends),
            "longest_requests": fit.longest_requests,
            "smallest_tensor_parallel_size": self.smallest_tensor_parallel_size,
            "reason": fit.fault or None,
            "gib_per_gpu": self.gib,
        }

    def __str__(self) -> str:
        """Return a sentence on whether the engine starts, with its KV cache or flags to change."""
        fit, others = self.fit, " | ".join(self.remedies)
        if fit.is_certain:
            smallest = self.smallest_tensor_parallel_size
            fewest = f"; smallest tensor-parallel size that starts: {smallest}"
            return (
                f"memory: the engine starts, with {self._cache_text()}{fewest if smallest else ''}"
            )
        remedy = f"it starts with {others}" if others else "changing a single flag does not help"
        if len(self.remedies) > 1:
            remedy = f"the engine starts with any of {others}"
        reason = self._cache_text() if fit.fits else fit.fault
        return f"memory: the engine {self.verdict.upper()}; {remedy}: {reason}"

    def _cache_text(self) -> str:
        """Return the size of the KV cache, and its number format if it is below 16 bits."""
        (low, high), form = self.fit.token_ends, self.deployment.kv_cache_precision
        cache = "a KV cache" if form.bytes_per_weight >= 2 else f"a KV cache in {form.name}"
        size = f"{cache} of {self.fit.kv_tokens:,} tokens"
        if high is None or low == high:
            return size
        return f"{size} ({low or 0:,} to {high:,})"


def start_up(deployment: Deployment, log: StartupLog | None = None) -> StartUp:
    """Return the start-up check of a configuration with default engine settings.

    Args:
        deployment: Deployment of the configuration.
        log: Start-up log of a server with this configuration; its cache size replaces the
            prediction.

    Raises:
        PinnError: If the log is from another configuration or a failed start.
    """
    engine = DEFAULT_SETTINGS
    return StartUp(deployment, engine if log is None else with_log(engine, deployment, log), log)


def start_warning(deployment: Deployment, engine: EngineSpec = DEFAULT_SETTINGS) -> str | None:
    """Return the start-up check of a server that may not start, or does not; None if it starts."""
    if engine.num_gpu_blocks_override is not None:
        return None
    found = StartUp(deployment, engine)
    said = str(found).removeprefix("memory: ")
    server = f"{deployment.model.title} on {hardware_label(deployment)}"
    return None if found.fit.is_certain else f"{server}: {said}"


def check_starts(deployment: Deployment, engine: EngineSpec) -> None:
    """Check that a deployment's engine starts at the lower bound of KV memory.

    Raises:
        PinnError: If the engine does not start; the message includes the flags to change.
    """
    if engine.num_gpu_blocks_override is not None:
        return
    found = StartUp(deployment, engine)
    if not found.fit.is_certain:
        says = str(found).removeprefix("memory: ")
        raise PinnError(f"{says}. Use --force to simulate the server as if it started")


def _remedies(deployment: Deployment, engine: EngineSpec) -> Iterator[str]:
    """Yield flags that each make the engine start by themselves, with the smallest change."""
    recipe, serving = deployment.recipe, deployment.serving

    def starts(name: str, value: FlagValue) -> bool:
        """Return whether a flag's value lets the engine start at the lower bound of KV memory."""
        with suppress(PinnError):  # the value may not suit the model
            changed = specified(partial(replace, serving), {name: value})
            return memory_fit(replace(deployment, serving=changed), engine).is_certain
        return False

    shares = _counted(recipe.memory_share, _MOST_SHARE, _SHARE_GRAIN)
    powers = (2**n for n in range(recipe.max_requests.bit_length() - 1, 2, -1))
    size = serving.tensor_parallel_size
    tried: dict[str, Iterable[int | float]] = {
        "gpu_memory_utilization": (round(share, 2) for share in shares),
        "max_num_seqs": (requests for requests in powers if requests < recipe.max_requests),
        "max_model_len": _contexts(deployment, partial(starts, "max_model_len")),
        "tensor_parallel_size": (2 * size, 4 * size, 8 * size),
    }
    for name, values in tried.items():
        found = next((value for value in values if starts(name, value)), None)
        if found is not None:
            yield f"{FLAGS[name].spelled_for(serving.engine)} {found}"


def _counted(first: float, last: float, grain: float) -> Iterator[float]:
    """Yield multiples of ``grain`` above ``first`` and up to ``last``, in ascending order."""
    steps = range(int(first / grain + 1e-6) + 1, int(last / grain + 1e-6) + 1)
    return (step * grain for step in steps)


def _contexts(deployment: Deployment, starts: Callable[[int], bool]) -> list[int]:
    """Return a list with the maximum context in tokens at which the engine starts, or []."""
    counts = range(max_model_len(deployment) // _LENGTH_GRAIN_TOKENS)
    failing = bisect_left(counts, True, lo=1, key=lambda n: not starts(n * _LENGTH_GRAIN_TOKENS))
    return [(failing - 1) * _LENGTH_GRAIN_TOKENS] if failing > 1 else []
