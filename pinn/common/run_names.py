"""Short names for measured runs, whose files and folders may have long or identical names."""

import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import PurePath

#: Maximum length, in characters, of a name that is shown in full.
_LONG = 40
#: Separators between the words of a name.
_WORDS = re.compile(r"([-_.])")
#: File name of a load stage of inference-perf, at the end of a path.
_STAGE = re.compile(r"stage_\d+_lifecycle_metrics\.json$")
#: Text between the two file names of a run read from two files.
_PAIR = " to "


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return a unique short name for each measured run, by path.

    File names are used if they all differ; a single run of inference-perf, whose file name is the
    same in all folders, has the name of its folder. Otherwise, path components that all runs share
    are dropped. In long names, words that all folder names begin with and words that all file names
    end with are also dropped.

    >>> short_names(["a/c1.json", "a/c4.json"])
    {'a/c1.json': 'c1.json', 'a/c4.json': 'c4.json'}
    >>> list(short_names(["runs/chat/results/s0.json", "runs/code/results/s0.json"]).values())
    ['chat', 'code']
    >>> list(short_names(["runs/chat/results/stage_0_lifecycle_metrics.json"]).values())
    ['chat']
    """
    paths = list(dict.fromkeys(names))
    if len(paths) == 1 and _STAGE.search(paths[0]):
        folders = [part for part in PurePath(paths[0]).parts[:-1] if part != "results"]
        return {paths[0]: folders[-1] if folders else paths[0]}
    files = [_PAIR.join(PurePath(part).name for part in path.split(_PAIR)) for path in paths]
    if len(set(files)) == len(files):
        return dict(zip(paths, files, strict=True))
    parts = [PurePath(path).parts for path in paths]
    shared = set(parts[0]).intersection(*parts)
    kept = [[part for part in each if part not in shared] for each in parts]
    found = ["/".join(each) for each in kept]
    if max(map(len, found)) > _LONG:
        has_files = all(each[-1:] and each[-1] not in shared for each in parts)
        folders = _without(1, ["/".join(each[: len(each) - has_files]) for each in kept])
        ends = _without(-1, [each[-1] if has_files else "" for each in kept])
        found = ["/".join(filter(None, pair)) for pair in zip(folders, ends, strict=True)]
    usable = all(found) and len(set(found)) == len(found)
    return dict(zip(paths, found if usable else paths, strict=True))


def _without(end: int, texts: list[str]) -> list[str]:
    """Drop the words with which all strings begin, or with which all end.

    Args:
        end: 1 to drop words at the start, -1 to drop words at the end.
        texts: Strings, some of which may be identical.
    """
    words = {text: _WORDS.split(text)[::end] for text in texts}
    if len(words) == 1:
        return texts
    equal = takewhile(lambda each: len(set(each)) == 1, zip(*words.values(), strict=False))
    count = len(list(equal))
    return ["".join(words[text][count:][::end]) for text in texts]
