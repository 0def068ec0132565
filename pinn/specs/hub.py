"""config.json files of the local Hugging Face cache and, where there is a network, of the hub."""

from __future__ import annotations

import threading
from pathlib import Path

from pinn.errors import PinnError
from pinn.specs.model_names import GENERATION_FILE, QUANT_FILE

#: Seconds after which the hub counts as out of reach.
PROBE_TIMEOUT_S = 4.0
CONFIG_FILE = "config.json"
#: Files that a model may have beside it.
FURTHER_FILES = (QUANT_FILE, GENERATION_FILE)


def cached_file(repo_id: str, filename: str) -> Path | None:
    """A file of the local cache; None where it is not there."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(repo_id, filename)
    except ValueError:  # no repository id
        return None
    return Path(found) if isinstance(found, str) else None


def download_config(repo_id: str) -> Path:
    """Download a model's config.json, and those of ``FURTHER_FILES`` that it has.

    Returns:
        The path of config.json in the local cache.

    Raises:
        PinnError: If the hub cannot be reached within ``PROBE_TIMEOUT_S``, does not know the
            model, keeps it gated, or fails at one of the files.
    """
    if not hub_is_reachable():
        raise PinnError("the model hub cannot be reached")
    path = _download(repo_id, CONFIG_FILE)
    if path is None:
        raise PinnError("the model hub does not have it")
    for name in FURTHER_FILES:
        _download(repo_id, name)
    return path


def _download(repo_id: str, filename: str) -> Path | None:
    """One file; None where the model has none of that name."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(hf_hub_download(repo_id, filename, etag_timeout=PROBE_TIMEOUT_S))
    except GatedRepoError as error:
        raise PinnError("it is gated: accept its licence on the hub and set HF_TOKEN") from error
    except LocalEntryNotFoundError as error:  # an entry not found, and a value error, by its class
        raise PinnError("the model hub did not answer (LocalEntryNotFoundError)") from error
    except EntryNotFoundError:
        return None
    except (RepositoryNotFoundError, ValueError) as error:
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
