"""Folders of the project, cached results, and atomic writing of files."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from pinn.common import JsonObject
from pinn.errors import PinnError

# Data, configuration and checkpoint files of the project, in a checkout or an installed wheel.

CHECKPOINT_VARIABLE = "PINN_CHECKPOINT"
_CHECKPOINT = Path("checkpoints") / "pinn.safetensors"


def _places(in_checkout: Path, installed: Path) -> tuple[Path, Path]:
    """Return the two paths at which a project file may be: in a checkout and in an install."""
    environment = Path(sysconfig.get_path("data")) / "share" / "pinn"
    return Path(__file__).resolve().parents[2] / in_checkout, environment / installed


def data_folder(name: str) -> Path:
    """Return the folder ``data/<name>`` of the project.

    In a checkout, including an editable install, this folder is at the root. An installed wheel has
    it at ``share/pinn/<name>`` in the environment (``data-files`` in pyproject.toml).

    Raises:
        PinnError: If neither folder exists.
    """
    return _shipped(f"the data folder {name}", Path("data", name), Path(name))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of one of the project's CSV files, in order, as dicts of strings."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def conf_file(name: str) -> Path:
    """Return the path of ``conf/<name>`` in the checkout or in an installed wheel.

    Raises:
        PinnError: If neither file exists.
    """
    return _shipped(name, Path("conf", name), Path("conf", name))


def _shipped(what: str, in_checkout: Path, installed: Path) -> Path:
    places = _places(in_checkout, installed)
    for place in places:
        if place.exists():
            return place
    raise PinnError(f"{what} is in neither {places[0]} nor {places[1]}: reinstall pinn")


def given_path(text: str | Path) -> Path:
    """Return a path with its ``~`` expanded; the file need not exist.

    Raises:
        PinnError: If the path is not a valid file name, or if access is denied.

    >>> given_path("models/config.json").name
    'config.json'
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: the path has a null byte
        reason = getattr(error, "strerror", None) or error
        fault = f"{str(text)!r:.80} cannot be read as a path ({reason})"
        raise PinnError(f"{fault}: give a known name or the path of a file") from error
    return path


def find_checkpoint(given: Path | str | None = None) -> Path:
    """Return the path of the checkpoint to use.

    The first of these is used: the given checkpoint, the environment variable ``PINN_CHECKPOINT``,
    ``checkpoints/pinn.safetensors`` in the working directory, the same file in the checkout from
    which pinn runs, or the installed checkpoint.

    Raises:
        PinnError: If a given checkpoint does not exist, or none is found.
    """
    from_environment = os.environ.get(CHECKPOINT_VARIABLE)
    for named, how in ((given, "--checkpoint"), (from_environment, CHECKPOINT_VARIABLE)):
        if named:
            path = given_path(named)
            if not path.is_file():
                remedy = "give the path of a checkpoint, or train one with 'python train.py'"
                raise PinnError(f"no checkpoint at {path} ({how}): {remedy}")
            return path
    places = [_CHECKPOINT, *_places(_CHECKPOINT, _CHECKPOINT)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        remedy = "give a checkpoint with --checkpoint, or train one with 'python train.py'"
        raise PinnError(f"no checkpoint found at {', '.join(map(str, places))}: {remedy}")
    return found


# Default fitted kernel surrogates of commands.

_NAME = Path("checkpoints") / "kernels" / "all"
_FILE = "kernels.json"


def find_kernels(given: Path | None, checkpoint: Path) -> Path | None:
    """Return the folder of the kernel surrogates to use.

    The first of these is used: the given folder, ``kernels/all`` in the checkpoint's folder,
    ``checkpoints/kernels/all`` in the working directory, the same folder in the checkout from which
    pinn runs, or the installed folder.

    Args:
        given: Folder that the user specified; None to search for a folder.
        checkpoint: Path of the checkpoint in use.

    Returns:
        Path of the folder; None if the user specified no folder and none is found.

    Raises:
        PinnError: If the given folder contains no surrogates.
    """
    if given is not None:
        if not (given / _FILE).is_file():
            remedy = f"{_FILE}, such as {_NAME}, or fit them with 'python train.py kernels=on'"
            raise PinnError(f"no kernel surrogates at {given}: give a folder with {remedy}")
        return given
    places = [checkpoint.parent / "kernels" / "all", _NAME, *_places(_NAME, _NAME)]
    return next((place for place in places if (place / _FILE).is_file()), None)


def needed_kernels(checkpoint: Path, what: str) -> Path:
    """Return the path of the JSON file of the kernel surrogates in use, for use in a cache key.

    The file contains the hash of the tensor file next to it, so a cache key that includes the JSON
    file covers both.

    Args:
        checkpoint: Path of the checkpoint in use.
        what: Quantity that requires the surrogates, used as the subject of the error message.

    Raises:
        PinnError: If :func:`find_kernels` finds no surrogates.
    """
    folder = find_kernels(None, checkpoint)
    if folder is None:
        raise PinnError(
            f"{what} needs kernel surrogates, and there are none: fit them with 'python train.py "
            "kernels=on'"
        )
    return folder / _FILE


# Folder of cached results, and atomic writing, so that no process reads an incomplete file.


def cache_folder() -> Path:
    """Return the path of the folder for cached results.

    The path is the environment variable ``PINN_CACHE`` or, if it is not set, ``pinn`` in
    ``XDG_CACHE_HOME`` or in the system's cache folder. Users may delete the contents of this folder
    at any time; results are then recomputed.
    """
    named = os.environ.get("PINN_CACHE")
    return given_path(named) if named else user_cache_path("pinn")


def replace_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call ``write`` on a temporary file next to ``path``, then rename that file to ``path``.

    The parent folder is created if it is missing. A device such as ``/dev/stdout`` is written
    directly.

    Raises:
        OSError: If the file cannot be written; its previous content is kept.
    """
    if path.is_dir():  # such as ".", which has no name from which to form a temporary file's
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        write(path)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write text (as UTF-8) or bytes to a file atomically (:func:`replace_atomically`)."""
    data = content.encode() if isinstance(content, str) else content
    replace_atomically(path, lambda target: target.write_bytes(data))


def write_json_file(path: Path, value: object, indent: int = 2) -> None:
    """Write a value to a file as JSON (:func:`json_text`), atomically."""
    write_whole(path, json_text(value, indent) + "\n")


def check_folder(path: Path, what: str) -> None:
    """Raise an error for an output file whose folder does not exist.

    Args:
        path: File to write.
        what: Option that names the file, or a noun.

    Raises:
        PinnError: If the folder does not exist.
    """
    if not path.parent.is_dir():
        raise PinnError(
            f"{what} {path} cannot be written, as the folder {path.parent} does not exist: "
            "create the folder, or correct the path"
        )


def check_suffix(path: Path, suffixes: Sequence[str], what: str) -> None:
    """Raise an error for an output file whose suffix is not that of a supported format.

    Args:
        path: File to write; a device may have any format.
        suffixes: Suffixes of the formats that can be written.
        what: Option that names the file, or a noun.

    Raises:
        PinnError: If the suffix is unknown; the message lists the known suffixes.
    """
    is_device = path.exists() and not path.is_file() and not path.is_dir()
    if path.suffix.lower() not in suffixes and not is_device:
        known = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
        raise PinnError(f"{what} {path} has an unknown format: give a name that ends in {known}")


def save_json(path: str | Path, value: object) -> None:
    """Write a value to the JSON file that the user named (:func:`write_json_file`).

    Raises:
        PinnError: If the file's folder does not exist, or its suffix is not ``.json``.
    """
    named = Path(path)
    check_folder(named, "the file")
    if named.suffix:
        check_suffix(named, (".json",), "the file")
    write_json_file(named, value)


def json_text(value: object, indent: int | None = None, *, allow_nan: bool = True) -> str:
    """Return a value as JSON text; nested dataclasses become objects with their fields as keys.

    >>> json_text({"report": ReadReport("a.csv", "1.0", "", 0, 0)})
    '{"report": {"source": "a.csv", "version": "1.0", "sha256": "", "read": 0, ...}}'
    """
    return json.dumps(value, indent=indent, allow_nan=allow_nan, default=_json_ready)


def _json_ready(value: object) -> dict[str, object]:
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


#: Function that returns a value as JSON text with sorted keys, so that equal values yield equal
#: text.
sorted_json = json.JSONEncoder(sort_keys=True, default=_json_ready).encode


# Counts of a file's rows: read, accepted and refused, with reasons.


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as lower-case hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def contents_digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of all files in a folder.

    Raises:
        PinnError: If the file or folder does not exist.
    """
    if path.is_dir():
        inside = sorted(each for each in path.rglob("*") if each.is_file())
        named = {str(each.relative_to(path)): file_sha256(each) for each in inside}
        return hashlib.sha256(sorted_json(named).encode()).hexdigest()
    try:
        return file_sha256(path)
    except OSError as error:
        why = error.strerror
        raise PinnError(f"{path}: cannot be read ({why}): give a readable file") from error


@dataclass(frozen=True)
class ReadReport:
    """Numbers of rows read, accepted and refused from one file; readers return it with the rows.

    Attributes:
        source: Name of the file, such as ``silicon_sample.csv``.
        version: Version of the package or engine that wrote the file.
        sha256: SHA-256 of the file's bytes.
        read: Number of rows in the file.
        accepted: Number of accepted rows.
        refused: Number of refused rows by reason, in the order in which the checks were applied.
        noted: Number of accepted rows to which each note applies, by note.
        places: Locations of the first refused rows by reason, such as ``run.json, line 3``.

    Raises:
        PinnError: If a count is negative, or if accepted and refused rows do not add up to the
            rows read.
    """

    source: str
    version: str
    sha256: str
    read: int
    accepted: int
    refused: Mapping[str, int] = field(default_factory=dict)
    noted: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if min(self.read, self.accepted, *self.refused.values(), 0) < 0:
            counts = f"a number of rows in the read report is negative ({self.to_json()})"
            raise PinnError(f"{self.source}: {counts}, which is a bug of pinn: please report it")
        if self.accepted + sum(self.refused.values()) != self.read:
            counts = f"{self.accepted} accepted and {sum(self.refused.values())} refused"
            fault = f"{self.read} rows were read, but {counts}"
            raise PinnError(
                f"{self.source}: {fault}, so pinn lost or duplicated rows, which is a "
                "bug: please report it"
            )

    @property
    def located(self) -> dict[str, int]:
        """Return the number of refused rows by reason; each reason includes the first locations.

        >>> ReadReport("a", "", "", 3, 0, {"cut off": 3}, places={"cut off": ["b", "c"]}).located
        {'cut off (b; c; and 1 more)': 3}
        """
        return {
            reason + _located(self.places.get(reason, ()), count): count
            for reason, count in self.refused.items()
        }

    def table(self) -> str:
        """Return the counts as aligned text, one line per reason.

        >>> print(ReadReport("a.csv", "1.0", "", 5, 3, {"no target": 2}).table())
        a.csv 1.0
               5  read
               2  refused: no target
               3  accepted
        """
        lines = [f"{self.source} {self.version}".rstrip(), f"{self.read:8d}  read"]
        lines += [f"{count:8d}  refused: {reason}" for reason, count in self.located.items()]
        lines += [f"{self.accepted:8d}  accepted"]
        lines += [f"{count:8d}  of these {what}" for what, count in self.noted.items()]
        return "\n".join(lines)

    def to_json(self) -> JsonObject:
        """Return the report as a JSON object; ``refused`` keeps the order of its reasons."""
        mappings = ("refused", "noted", "places")
        return vars(self) | {name: dict(getattr(self, name)) for name in mappings}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> ReadReport:
        """Restore a report from the JSON object that :meth:`to_json` returned.

        Raises:
            PinnError: If a key is missing or unknown, or the counts do not add up.
        """
        try:
            return ReadReport(**values)
        except TypeError as error:
            fault = f"the keys are not those of a read report ({error})"
            raise PinnError(f"{fault}: ingest the files again") from error


def _located(places: Sequence[str], count: int) -> str:
    """Return the first locations of refused rows in parentheses, and how many more there are."""
    if not places:
        return ""
    more = [f"and {count - len(places):,} more"] if count > len(places) else []
    return f" ({'; '.join([*places, *more])})"
