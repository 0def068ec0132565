"""Responses to HTTP requests, computed in a separate process, and the cache of responses."""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from pinn.api.service.endpoints import ENDPOINTS, check_time_budget
from pinn.api.service.named_files import any_exists, check_no_files, plain_texts
from pinn.api.service.problems import problem
from pinn.common.documents import parse_json
from pinn.common.files import find_checkpoint
from pinn.engines.configurations import forget_files
from pinn.errors import PinnError, printable

#: Maximum total size of all cached responses, in bytes.
MOST_KEPT_BYTES = 64 * 2**20
#: Maximum number of warnings in a response, and maximum length of each warning in characters.
_MOST_WARNINGS, _WARNING_CHARACTERS = 20, 300


@dataclass(frozen=True)
class Answer:
    """Response to a request.

    Attributes:
        status: HTTP status.
        content: JSON document of the result, or of the error (RFC 9457).
        warned: Warnings to the user, which a command would print on standard error.
        texts: All strings in the request's arguments if none names a file; None if one may name a
            file, in which case the response must not be cached.
    """

    status: int
    content: bytes
    warned: tuple[str, ...] = ()
    texts: frozenset[str] | None = None


@dataclass(frozen=True)
class Limits:
    """Time limit of a request, and whether it may name files.

    Attributes:
        timeout_s: Maximum time to compute a response, in seconds.
        reads_files: Whether a request may name files.
    """

    timeout_s: float
    reads_files: bool


def compute(name: str, content: bytes, limits: Limits) -> Answer:
    """Return the response of an endpoint, or a description of the problem with the request.

    Args:
        name: Name of the endpoint.
        content: Body of the request.
        limits: Limits of the service.
    """
    forget_files()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            found, texts = _computed(name, content, limits)
        except PinnError as error:
            return Answer(422, problem(422, error))
        except OSError as error:
            fault = f"{error.filename or 'a file'}: {error.strerror or error}: give a readable file"
            return Answer(422, problem(422, fault))
        except MemoryError:
            return Answer(422, problem(422, "not enough memory: send a smaller request"))
        except Exception:
            logging.getLogger("pinn").exception("%s failed", name)
            fault = "internal error, recorded in the service's log: please report it"
            return Answer(500, problem(500, fault))
    said = (printable(each.message, _WARNING_CHARACTERS) for each in caught)
    told = tuple(dict.fromkeys(said))[:_MOST_WARNINGS]
    return Answer(200, found, told, texts if ENDPOINTS[name].is_kept else None)


def _computed(name: str, content: bytes, limits: Limits) -> tuple[bytes, frozenset[str] | None]:
    """Return an endpoint's result as JSON, and the request's strings if none names a file."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise PinnError("the body is not UTF-8 text: send a JSON object in UTF-8") from None
    body = parse_json(text, "body")
    if not isinstance(body, dict):
        example = '{"model": "Llama-3.1-8B", "gpu": "H100"}'
        raise PinnError(f"the body must be a JSON object such as {example}, got {body!r:.60}")
    texts = plain_texts(body)
    if not limits.reads_files:
        check_no_files(texts)
    if name == "plan":
        check_time_budget(body, limits.timeout_s)
    return ENDPOINTS[name].answer(body), texts


def warm_up() -> None:
    """Import the modules that predictions need, and load the data that all predictions share."""
    body = b'{"model": "Llama-3.1-8B", "gpu": "H100"}'
    compute("predict", body, Limits(60.0, reads_files=False))


class KeptAnswers:
    """Cache of responses, limited in bytes, that keeps the most recently used ones.

    The key consists of the endpoint, the request's body and the checkpoint. Responses to requests
    that name a file, or a model outside the catalog, are not cached.
    """

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._answers: OrderedDict[str, Answer] = OrderedDict()

    def key(self, name: str, content: bytes) -> str:
        """Return the cache key of a request.

        Raises:
            PinnError: If no checkpoint is found.
        """
        path = find_checkpoint()
        facts = os.stat(path)
        text = f"{name} {Path(path).resolve()} {facts.st_mtime_ns} {facts.st_size} "
        return hashlib.sha256(text.encode() + content).hexdigest()

    def find(self, key: str) -> Answer | None:
        """Return a cached response; None if there is none, or if its request now names a file."""
        found = self._answers.get(key)
        if found is None or any_exists(found.texts or frozenset()):
            return None
        self._answers.move_to_end(key)
        return found

    def keep(self, key: str, answer: Answer) -> None:
        """Cache a response, unless its request names a file."""
        if answer.texts is None or key in self._answers:
            return
        self._answers[key] = answer
        self._bytes += _size(answer)
        while self._bytes > self._most_bytes:
            _, oldest = self._answers.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(answer: Answer) -> int:
    """Estimate the size of a response in bytes, with 100 bytes of overhead per string."""
    return 1000 + len(answer.content) + sum(100 + len(text) for text in answer.texts or ())
