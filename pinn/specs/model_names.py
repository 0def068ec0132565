"""Names of models in the catalog, their aliases, and their files on the Hugging Face hub."""

import difflib
import re
import threading
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pinn.common.documents import read_json
from pinn.common.files import given_path
from pinn.errors import PinnError, warn_user
from pinn.specs.config_fields import PACKAGE_SUFFIX, inverted, models_file, name_of

# Names and aliases in the model catalog, and the file of each model.

#: Names of optional files next to a config.json.
QUANT_FILE = "hf_quant_config.json"
GENERATION_FILE = "generation_config.json"
PROCESSOR_FILE = "preprocessor_config.json"


class CatalogModel(NamedTuple):
    """A model of the catalog: its full name, and its config.json or the path of this file."""

    name: str
    config: Path | Mapping[str, object]

    def documents(self) -> tuple[Mapping[str, object], Mapping[str, object] | None]:
        """Return the parsed config.json and the separate quantization config, if there is one."""
        if isinstance(self.config, Mapping):
            return self.config, None
        return read_json(self.config), optional_json(quantization_beside(self.config))


@cache
def catalog_models() -> dict[str, CatalogModel]:
    """Return the models of the catalog, by lower-case full name.

    Models of configs.json take precedence over those of aiconfigurator-core.
    """
    table, found = models_file("configs.json"), dict[str, CatalogModel]()
    columns = table["columns"]
    for family in table["families"]:
        for name, row in family["models"].items():
            own = row
            if isinstance(row, list):
                own = dict(zip(columns, row, strict=False))
                own |= row[-1] if len(row) > len(columns) else {}
            found[name.lower()] = CatalogModel(name, {**family["all"], **own})
    for path in _package_files():
        found.setdefault(name_of(path).lower(), CatalogModel(name_of(path), path))
    return found


def optional_json(path: Path | None) -> Any:
    """Return the content of a JSON file; None without a file."""
    return None if path is None else read_json(path)


def quantization_beside(path: Path) -> Path | None:
    """Return the path of the quantization config in a config.json's folder; None if absent."""
    is_package = path.name.endswith(PACKAGE_SUFFIX)
    prefix = f"{path.name.removesuffix(PACKAGE_SUFFIX)}_" if is_package else ""
    quant = path.with_name(f"{prefix}{QUANT_FILE}")
    return quant if quant.is_file() else None


def _package_files() -> list[Path]:
    """Return the model config files of aiconfigurator-core; warn if it is not installed."""
    spec = find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None:
        missing = "most names of 'pinn models' are missing"
        warn_user(f"aiconfigurator-core is not installed: {missing}")
        return []
    found = (Path(spec.origin).parent / "model_configs").glob(f"*{PACKAGE_SUFFIX}")
    return sorted(path for path in found if not path.name.endswith(QUANT_FILE))


@cache
def aliases() -> dict[str, str]:
    """Map each alias to the full name of the catalog model with the same shapes and formats."""
    return dict(sorted(inverted(models_file("aliases.json")).items()))


@cache
def _published_generation() -> dict[str, dict[str, object]]:
    """Return the published sampling settings of models, by lower-case full or bare name."""
    groups = models_file("generation.json")["groups"]
    found = {name.lower(): group["settings"] for group in groups for name in group["models"]}
    return {name.split("/")[-1]: settings for name, settings in found.items()} | found


def published_generation(name: str) -> dict[str, object] | None:
    """Return the settings in a model's published generation_config.json; None if unknown.

    >>> published_generation("Qwen/Qwen3-8B")["top_k"]
    20
    """
    return _published_generation().get(name.strip("/").lower())


@cache
def full_names() -> dict[str, list[str]]:
    """Map each full or bare name, in lower case, to the catalog keys of the models it may mean.

    If a name is both a full and a bare name, it means the model with this full name.
    """
    targets = {each.name: key for key, each in catalog_models().items()}
    targets |= {name: target.lower() for name, target in aliases().items() if name not in targets}
    found: dict[str, list[str]] = {name.lower(): [key] for name, key in targets.items()}
    bare: dict[str, list[str]] = {}
    for name, key in targets.items():
        entries = bare.setdefault(name.split("/")[-1].lower(), [])
        if key not in entries:
            entries.append(key)
    return {**bare, **found}


def find_in_catalog(name: str) -> CatalogModel | None:
    """Return a catalog model by full name, bare name or alias; None if there is none.

    Raises:
        PinnError: If a bare name matches several models.
    """
    keys = full_names().get(name.strip("/").lower(), [])
    if len(keys) > 1:
        names = ", ".join(catalog_models()[key].name for key in keys)
        raise PinnError(f"the model name {name!r} fits several models: use one of {names}")
    return catalog_models()[keys[0]] if keys else None


def names_of(full_name: str) -> list[str]:
    """Return the full name and aliases of a catalog model; for any other model, only its name.

    >>> names_of("google/gemma-2-9b")
    ['google/gemma-2-9b', 'google/gemma-2-9b-it']
    """
    return [full_name, *models_file("aliases.json").get(full_name, ())]


def repository(model: str) -> str:
    """Return the repository name that engines need: ``org/name`` for a bare catalog name.

    A bare alias has its own repository, which differs from that of the catalog model.

    >>> repository("Qwen3-8B"), repository("Llama-3.1-8B-Instruct")
    ('Qwen/Qwen3-8B', 'meta-llama/Llama-3.1-8B-Instruct')
    """
    known = "/" in model or given_path(model).exists()
    found = None if known else find_in_catalog(model)
    if found is None:
        return model
    bare = model.strip("/").lower()
    mine = (name for name in names_of(found.name) if name.split("/")[-1].lower() == bare)
    return next(mine, found.name)


def suggestion(name: str) -> str:
    """Return the remedy for an unknown model name: similar names, or advice to give a path."""
    names = [each.name for each in catalog_models().values()]
    known = {key.lower(): key for key in [*names, *aliases()]}
    bare = {key.split("/")[-1]: key for key in known}
    wanted = name.lower()
    close = [known[key] for key in difflib.get_close_matches(wanted, known, n=3)]
    close += [known[bare[key]] for key in difflib.get_close_matches(wanted, bare, n=3)]
    hint = f"close names are {', '.join(dict.fromkeys(close))}, or " if close else ""
    return f"{hint}give the path of its config.json"


# config.json files from the local Hugging Face cache and from the hub.

#: Time in seconds without a response after which the Hugging Face hub counts as unreachable.
PROBE_TIMEOUT_S = 4.0


def cached_file(repo_id: str, filename: str) -> Path | None:
    """Return the path of a file in the local Hugging Face cache; None if it is not cached."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(repo_id, filename)
    except ValueError:  # the name is not a valid repository id
        return None
    return Path(found) if isinstance(found, str) else None


def download_config(repo_id: str) -> Path:
    """Download a model's config.json and optional companion files from the Hugging Face hub.

    Returns:
        The path of config.json in the local cache.

    Raises:
        PinnError: If the hub does not answer within ``PROBE_TIMEOUT_S``, does not know the
            model or keeps it gated, or if a download fails.
    """
    if not hub_is_reachable():
        raise PinnError("the Hugging Face hub cannot be reached")
    path = _download(repo_id, "config.json")
    if path is None:
        raise PinnError("the Hugging Face hub has no such model")
    for name in (QUANT_FILE, GENERATION_FILE, PROCESSOR_FILE):
        _download(repo_id, name)
    return path


def _download(repo_id: str, filename: str) -> Path | None:
    """Download a file of a model and return its path; None if the model does not have the file."""
    from huggingface_hub import errors, hf_hub_download

    try:
        return Path(hf_hub_download(repo_id, filename, etag_timeout=PROBE_TIMEOUT_S))
    except errors.GatedRepoError as error:
        remedy = "accept the licence of the model, and set HF_TOKEN to your token"
        raise PinnError(f"the model is gated on the Hugging Face hub: {remedy}") from error
    # EntryNotFoundError and its subclasses are also ValueErrors, so they are caught before
    # ValueError.
    except errors.LocalEntryNotFoundError as error:
        raise PinnError("the Hugging Face hub did not answer (LocalEntryNotFoundError)") from error
    except errors.EntryNotFoundError:
        return None
    except (errors.RepositoryNotFoundError, ValueError) as error:
        raise PinnError("the Hugging Face hub has no such model") from error
    except Exception as error:  # transport errors of any HTTP library used by the hub client
        name = type(error).__name__
        raise PinnError(f"the Hugging Face hub did not answer ({name})") from error


def hub_is_reachable() -> bool:
    """Return whether the hub answers one request, without the client's retries of 20 s."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    answered = threading.Event()

    def probe() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=PROBE_TIMEOUT_S)
        except Exception:  # any transport error means that the hub is unreachable
            return
        answered.set()

    # The look-up of a host name may outlast the request's timeout, so it runs in a thread.
    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(PROBE_TIMEOUT_S)
    return answered.is_set()


# Names and paths of unreadable models; the errors state what to give instead.

_ADAPTER = "adapter_config.json"


def check_name(name: str) -> None:
    """Check that a model name is not that of a release for another engine (llama.cpp).

    Raises:
        PinnError: If the name contains another engine's format.

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
    """Check that a path is not a GGUF file or LoRA adapter, or a folder with no other model.

    Raises:
        PinnError: If the path is such a file or folder; the message states what to give instead.
    """
    is_folder = path.is_dir()
    if is_folder and (path / "config.json").is_file():
        return
    if path.suffix == ".gguf" or (is_folder and next(path.glob("*.gguf"), None)):
        raise PinnError(
            f"{path} is a model in llama.cpp's format GGUF, whose kernels were not "
            "measured: give the config.json of the model from which it was made, "
            "with --quantization int4 for its size"
        )
    adapter = path / _ADAPTER if is_folder else path
    if adapter.name == _ADAPTER and adapter.is_file():
        content = read_json(adapter)
        base = content.get("base_model_name_or_path") if isinstance(content, Mapping) else None
        raise PinnError(
            f"{adapter} is a LoRA adapter, whose step time is not predicted: give the "
            f"base model of the adapter ({base or 'which the file does not state'})"
        )
