"""The words of a launch command: variables, the engine, its release, its arguments."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from pinn.errors import PinnError
from pinn.specs.serving import SGLANG, TRTLLM, VLLM

#: Words that start an engine; a positional model may follow but the second and third.
_PROGRAMS = (
    (VLLM, ("vllm", "serve")),
    (VLLM, ("-m", "vllm.entrypoints.openai.api_server")),
    (VLLM, ("-m", "vllm.entrypoints.cli.main", "serve")),
    (SGLANG, ("-m", "sglang.launch_server")),
    (SGLANG, ("sglang", "serve")),
    (TRTLLM, ("trtllm-serve", "serve")),
    (TRTLLM, ("trtllm-serve",)),
)
_IMAGE = re.compile(
    r"(?:.*/)?(?P<name>vllm-openai|sglang|tensorrt-llm/release)(?::(?P<tag>[\w.-]+))?(?:@sha256:\w+)?"
)
_ENGINE_OF_IMAGE = {"vllm-openai": VLLM, "sglang": SGLANG, "tensorrt-llm/release": TRTLLM}
_VARIABLE = re.compile(r"(?:--env=|-e)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_END = re.compile(r"&&?|\|\|?|;|[12&]?>.*|\d*<.*")


class Words(NamedTuple):
    """A command taken apart.

    Attributes:
        engine: Of ``ENGINES``.
        release: What the image's tag says; empty where none does.
        variables: Of the environment, as the command sets them.
        arguments: Of the engine.
    """

    engine: str
    release: str
    variables: dict[str, str]
    arguments: list[str]


def words_of(command: str) -> Words:
    """Take a command apart.

    Raises:
        PinnError: If its quotes do not match, or it starts no engine that is known.

    >>> words_of("VLLM_USE_V1=1 vllm serve Qwen/Qwen3-8B -tp 2 > log &").arguments
    ['Qwen/Qwen3-8B', '-tp', '2']
    """
    try:
        words = shlex.split(command.replace("\\\r\n", " ").replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise PinnError(f"--serve: cannot read the command ({error}): check its quotes") from None
    found = _image(words)
    image, engine, release = found or (-1, "", "")
    program = _program(words, image + 1)
    if program is not None:
        engine, first = program
    elif engine == VLLM:
        first = image + 1  # the image's entry point is the server
    else:
        raise PinnError(
            "--serve: the command starts no engine that is known here: use 'vllm serve MODEL ...', "
            "'python -m vllm.entrypoints.openai.api_server --model MODEL ...', "
            "'python -m sglang.launch_server --model-path MODEL ...' or 'trtllm-serve MODEL ...'"
        )
    variables = [match for word in words[:first] if (match := _VARIABLE.fullmatch(word))]
    return Words(engine, release, {m[1]: m[2] for m in variables}, _arguments(words[first:]))


def _image(words: list[str]) -> tuple[int, str, str] | None:
    """Where a container's image is named, its engine and release."""
    if not {"docker", "podman", "nerdctl"} & {word.rsplit("/", 1)[-1] for word in words}:
        return None
    for i, word in enumerate(words):
        match = _IMAGE.fullmatch(word.replace("#", "/"))
        if match is not None:
            tag = match["tag"] or ""
            release = tag if re.match(r"v?\d+\.\d", tag) else ""
            return i, _ENGINE_OF_IMAGE[match["name"]], release
    return None


def _program(words: list[str], start: int) -> tuple[str, int] | None:
    """The engine that words start, and where its arguments begin."""
    for i in range(start, len(words)):
        for engine, program in _PROGRAMS:
            here = words[i : i + len(program)]
            if here and (here[0].rsplit("/", 1)[-1], *here[1:]) == program:
                return engine, i + len(program)
    return None


def _arguments(words: list[str]) -> list[str]:
    """Up to what a shell takes for itself."""
    found = []
    for word in words:
        if _END.fullmatch(word):
            break
        found.append(word.removesuffix(";"))
        if word.endswith(";"):
            break
    return found
