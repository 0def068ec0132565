"""The engine behind a file, as tools spell it, as flags."""

from __future__ import annotations

from pinn.errors import PinnError
from pinn.specs.engine_defaults import release
from pinn.specs.serving import SGLANG, TRTLLM, VLLM

#: Part of the name in small letters -> engine. InferenceX writes ``trt``, ``dynamo-trt`` and
#: ``dynamo-sglang``, clients of SGLang ``sglang-oai-chat`` and ``trt``.
_ENGINES = {"vllm": VLLM, "sglang": SGLANG, "trt": TRTLLM, "tensorrt": TRTLLM}

#: Front ends whose images bear their own release, not the engine's.
_FRONT_END = "dynamo"


def engine_flags(spelled: str) -> dict[str, str]:
    """``engine`` and, where the name says its release, ``engine_version``.

    Empty where the name says no engine that is simulated here.

    >>> engine_flags("sglang v0.5.5-cu129-amd64")
    {'engine': 'sglang', 'engine_version': '0.5.5'}
    >>> engine_flags("dynamo-trt 0.6.1"), engine_flags("llm-d 0.3.1")
    ({'engine': 'trtllm'}, {})
    """
    name, _, version = spelled.lower().partition(" ")
    engine = next((ours for part, ours in _ENGINES.items() if part in name), None)
    if engine is None:
        return {}
    try:
        numbers = () if name.startswith(_FRONT_END) else release(version)
    except PinnError:
        numbers = ()
    # Builds from a branch call themselves 0.0.0.
    if not any(numbers):
        return {"engine": engine}
    return {"engine": engine, "engine_version": ".".join(map(str, numbers))}
