"""Results on disk: a value, a table or a folder, found again as long as all that decides it stays.

    remembered_table(errors_of_fold, rows, split, root=folder)

calls ``errors_of_fold(rows, split)`` once and reads its table from then on, until the arguments,
the function or anything that it imports changes. What decides nothing, such as a number of
processes, goes in ``aside``.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinn.specs.files.recipe import Recipe, contents_digest, recipe_of
from pinn.specs.files.write import cache_folder, replace_atomically

if TYPE_CHECKING:
    import pandas as pd

#: In a remembered folder: what it was made of, and the digests of its files. Written last.
RECIPE_FILE = "recipe.json"


def remembered_value(
    function: Callable[..., Any],
    *arguments: Any,
    root: Path | None = None,
    aside: Mapping[str, Any] | None = None,
) -> Any:
    """What ``function(*arguments)`` gives, which has to be JSON-ready.

    Args:
        function: What computes it, of a module.
        arguments: All that decides the result; see :func:`pinn.specs.files.recipe.recipe_of`.
        root: Where results are kept; None for :func:`pinn.specs.files.write.cache_folder`. Where
            nothing can be written, nothing is kept.
        aside: Keyword arguments that decide nothing.

    Raises:
        PinnError: If an argument cannot be part of a key.
    """
    recipe = recipe_of(function, arguments)
    path = _place(recipe, root).with_suffix(".json")
    try:
        found = json.loads(path.read_text())
        if found["recipe"]["key"] == recipe.key:
            return found["value"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    value = function(*arguments, **(aside or {}))
    text = json.dumps({"recipe": recipe.to_json(), "value": value}, indent=1) + "\n"
    _keep(path, lambda target: target.write_text(text))
    return json.loads(text)["value"]


def remembered_table(
    function: Callable[..., pd.DataFrame],
    *arguments: Any,
    root: Path | None = None,
    aside: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """The table that ``function(*arguments)`` gives, without its index.

    Arguments are those of :func:`remembered_value`.
    """
    import pandas as pd

    path = _place(recipe_of(function, arguments), root).with_suffix(".parquet")
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError):
        pass
    table = function(*arguments, **(aside or {})).reset_index(drop=True)
    _keep(path, lambda target: table.to_parquet(target, index=False))
    return table


def remembered_folder(
    function: Callable[..., object],
    *arguments: Any,
    root: Path | None = None,
    aside: Mapping[str, Any] | None = None,
) -> Path:
    """A folder that ``function(folder, *arguments)`` has filled.

    The function finds what an interrupted call left there. Files that were changed since are
    removed and it is called again. Where nothing can be written, the folder is a temporary one.
    Arguments are those of :func:`remembered_value`.
    """
    recipe = recipe_of(function, arguments)
    folder = _place(recipe, root)
    if not _is_whole(folder, recipe):
        folder = _made(folder)
        function(folder, *arguments, **(aside or {}))
        _finish(folder, recipe)
    return folder


def _place(recipe: Recipe, root: Path | None) -> Path:
    name = recipe.function.partition(".")[2] or recipe.function
    return (root or cache_folder()) / name / recipe.key


def _keep(path: Path, write: Callable[[Path], object]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(path, write)
    except OSError:
        return  # what cannot be kept is computed again


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_atomically(folder / "writable", lambda target: target.touch())
        (folder / "writable").unlink()
    except OSError:
        temporary = Path(tempfile.mkdtemp(prefix="pinn-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return temporary
    return folder


def _is_whole(folder: Path, recipe: Recipe) -> bool:
    """Whether the folder was finished; files that differ from what was written go."""
    try:
        found = json.loads((folder / RECIPE_FILE).read_text())
        if found["recipe"]["key"] != recipe.key:
            return False
        files = {folder / name: digest for name, digest in found["files_sha256"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    changed = [p for p, digest in files.items() if p.is_file() and contents_digest(p) != digest]
    for path in changed:
        path.unlink()
    return not changed and all(path.is_file() for path in files)


def _finish(folder: Path, recipe: Recipe) -> None:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != RECIPE_FILE)
    digests = {str(p.relative_to(folder)): contents_digest(p) for p in files}
    text = json.dumps({"recipe": recipe.to_json(), "files_sha256": digests}, indent=1) + "\n"
    _keep(folder / RECIPE_FILE, lambda target: target.write_text(text))
