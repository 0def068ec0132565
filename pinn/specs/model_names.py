"""Names of models, here, at other tools, and on the model hub."""

import difflib
import re
import threading
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from pinn.common.documents import read_json
from pinn.common.files import data_folder, given_path
from pinn.errors import PinnError
from pinn.specs.config_fields import PACKAGE_SUFFIX, inverted, models_file, name_of

# The names of the model catalog: which file a name or an alias stands for.

#: Names of what may lie beside a config.json.
QUANT_FILE = "hf_quant_config.json"
GENERATION_FILE = "generation_config.json"


@cache
def catalog_files() -> dict[str, tuple[str, Path]]:
    """Lower-case full name -> full name and file; the project's own files go first."""
    found: dict[str, tuple[str, Path]] = {}
    own = (path for path in data_folder("models").glob("*--*.json"))
    for path in [*sorted(own), *_package_files()]:
        name = name_of(path)
        found.setdefault(name.lower(), (name, path))
    return found


def _package_files() -> list[Path]:
    """The configs that aiconfigurator-core ships; without the package, none and a warning."""
    spec = find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None:
        missing = "most names of 'pinn models' are missing"
        warnings.warn(f"aiconfigurator-core is not installed: {missing}", stacklevel=2)
        return []
    found = (Path(spec.origin).parent / "model_configs").glob(f"*{PACKAGE_SUFFIX}")
    return sorted(path for path in found if not path.name.endswith(QUANT_FILE))


@cache
def aliases() -> dict[str, str]:
    """Other name -> full name of a catalog model of the same shapes and formats."""
    return dict(sorted(inverted(models_file("aliases.json")).items()))


@cache
def _published_generation() -> dict[str, dict[str, object]]:
    """Lower-case full or bare name -> settings; a base model and its chat model differ in them."""
    groups = models_file("generation.json")["groups"]
    found = {name.lower(): group["settings"] for group in groups for name in group["models"]}
    return {name.split("/")[-1]: settings for name, settings in found.items()} | found


def published_generation(name: str) -> dict[str, object] | None:
    """Sampling settings of the generation_config.json published with a model; None if unknown.

    >>> published_generation("Qwen/Qwen3-8B")["top_k"]
    20
    """
    return _published_generation().get(name.strip("/").lower())


@cache
def full_names() -> dict[str, list[str]]:
    """Lower-case full or bare name -> catalog keys; a full name goes before a bare one."""
    targets = {name: key for key, (name, _) in catalog_files().items()}
    targets |= {name: target.lower() for name, target in aliases().items() if name not in targets}
    found: dict[str, list[str]] = {name.lower(): [key] for name, key in targets.items()}
    bare: dict[str, list[str]] = {}
    for name, key in targets.items():
        entries = bare.setdefault(name.split("/")[-1].lower(), [])
        if key not in entries:
            entries.append(key)
    return {**bare, **found}


def find_in_catalog(name: str) -> tuple[str, Path] | None:
    """Full name and file of a catalog model by full or bare name or alias; None without one.

    Raises:
        PinnError: If a bare name fits several models.
    """
    keys = full_names().get(name.strip("/").lower(), [])
    if len(keys) > 1:
        names = ", ".join(catalog_files()[key][0] for key in keys)
        raise PinnError(f"model name {name!r} is ambiguous: use one of {names}")
    return catalog_files()[keys[0]] if keys else None


def names_of(full_name: str) -> list[str]:
    """A catalog model's full name and its aliases; the name alone of any other.

    >>> names_of("google/gemma-2-9b")
    ['google/gemma-2-9b', 'google/gemma-2-9b-it']
    """
    return [full_name, *models_file("aliases.json").get(full_name, ())]


def repository(model: str) -> str:
    """Return a model as engines take it: a short catalog name is completed, all else is kept.

    >>> repository("Qwen3-8B"), repository("Qwen/Qwen3-8B")
    ('Qwen/Qwen3-8B', 'Qwen/Qwen3-8B')
    """
    known = "/" in model or given_path(model).exists()
    found = None if known else find_in_catalog(model)
    return found[0] if found else model


def suggestion(name: str) -> str:
    """The remedy for an unknown name: names that come close, or a path."""
    names = [full_name for full_name, _ in catalog_files().values()]
    known = {key.lower(): key for key in [*names, *aliases()]}
    bare = {key.split("/")[-1]: key for key in known}
    wanted = name.lower()
    close = [known[key] for key in difflib.get_close_matches(wanted, known, n=3)]
    close += [known[bare[key]] for key in difflib.get_close_matches(wanted, bare, n=3)]
    hint = f"close names are {', '.join(dict.fromkeys(close))}, or " if close else ""
    return f"{hint}give the path of its config.json"


# config.json files of the local Hugging Face cache and, where there is a network, of the hub.

#: Seconds after which the hub counts as out of reach.
PROBE_TIMEOUT_S = 4.0


def cached_file(repo_id: str, filename: str) -> Path | None:
    """A file of the local cache; None where it is not there."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(repo_id, filename)
    except ValueError:  # no repository id
        return None
    return Path(found) if isinstance(found, str) else None


def download_config(repo_id: str) -> Path:
    """Download a model's config.json, and what it has of the files that may lie beside it.

    Returns:
        The path of config.json in the local cache.

    Raises:
        PinnError: If the hub cannot be reached within ``PROBE_TIMEOUT_S``, does not know the
            model, keeps it gated, or fails at one of the files.
    """
    if not hub_is_reachable():
        raise PinnError("the model hub cannot be reached")
    path = _download(repo_id, "config.json")
    if path is None:
        raise PinnError("the model hub does not have it")
    for name in (QUANT_FILE, GENERATION_FILE):
        _download(repo_id, name)
    return path


def _download(repo_id: str, filename: str) -> Path | None:
    """One file; None where the model has none of that name."""
    from huggingface_hub import errors, hf_hub_download

    try:
        return Path(hf_hub_download(repo_id, filename, etag_timeout=PROBE_TIMEOUT_S))
    except errors.GatedRepoError as error:
        raise PinnError("it is gated: accept its licence on the hub and set HF_TOKEN") from error
    # Also an EntryNotFoundError and a ValueError, so it goes first.
    except errors.LocalEntryNotFoundError as error:
        raise PinnError("the model hub did not answer (LocalEntryNotFoundError)") from error
    except errors.EntryNotFoundError:
        return None
    except (errors.RepositoryNotFoundError, ValueError) as error:
        raise PinnError("the model hub does not have it") from error
    except Exception as error:  # transport errors of whichever HTTP library the hub client uses
        raise PinnError(f"the model hub did not answer ({type(error).__name__})") from error


def hub_is_reachable() -> bool:
    """Whether the hub answers at all; asked once, without the client's own 20 s of retries."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    answered = threading.Event()

    def probe() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=PROBE_TIMEOUT_S)
        except Exception:  # as above
            return
        answered.set()

    thread = threading.Thread(target=probe, daemon=True)  # name look-ups may hang beyond a timeout
    thread.start()
    thread.join(PROBE_TIMEOUT_S)
    return answered.is_set()


# What looks like a model and is none that can be read: refused with what to give in its place.

_ADAPTER = "adapter_config.json"


def check_name(name: str) -> None:
    """Refuse the name of a release for another engine.

    Raises:
        PinnError: If it is one.

    >>> check_name("TheBloke/Llama-2-7B-Chat-GGUF")
    Traceback (most recent call last):
    pinn.errors.PinnError: 'TheBloke/Llama-2-7B-Chat-GGUF' is a model in a format of llama.cpp, \
whose kernels were not measured: give the model from which it was made, with --quantization \
int4 for its size
    """
    engines = inverted(models_file("name_words.json")["other_engines"])
    words = re.split(r"[-_./:]", name.lower())
    engine = next((engines[word] for word in words if word in engines), None)
    if engine is not None:
        raise PinnError(
            f"{name!r} is a model in a format of {engine}, whose kernels were not "
            "measured: give the model from which it was made, with "
            "--quantization int4 for its size"
        )


def check_path(path: Path) -> None:
    """Refuse GGUF files and LoRA adapters, and folders that hold nothing else.

    Raises:
        PinnError: If the path is one, with what to give in its place.
    """
    is_folder = path.is_dir()
    if is_folder and (path / "config.json").is_file():
        return
    if path.suffix == ".gguf" or (is_folder and next(path.glob("*.gguf"), None)):
        raise PinnError(
            f"{path}: GGUF is llama.cpp's format, whose kernels were not "
            "measured: give the config.json of the model from which it was made, "
            "with --quantization int4 for its size"
        )
    adapter = path / _ADAPTER if is_folder else path
    if adapter.name == _ADAPTER and adapter.is_file():
        content = read_json(adapter)
        base = content.get("base_model_name_or_path") if isinstance(content, Mapping) else None
        raise PinnError(
            f"{adapter} is a LoRA adapter, not a model: give the model that it "
            f"adapts ({base or 'which it does not state'}); the step time of the "
            "adapter is not predicted"
        )
