"""Grids of tiles or patches into which image processors of transformers 5.24 split images.

Sizes are (width, height) unless stated otherwise. Each docstring names the function of transformers
that it follows.
"""

import math
from collections.abc import Iterable, Sequence

Pair = tuple[int, int]
#: Maximum length of an image's longest edge, in pixels (idefics3/image_processing_idefics3.py:
#: MAX_IMAGE_SIZE).
_LONGEST = 4096


def between(width: int, height: int, edge: int, least: int, most: int) -> Pair:
    """Return columns and rows of squares that cover an image scaled to an area within limits.

    Limits are in pixels; 0 means no limit. Source: qwen2_vl/image_processing_qwen2_vl.py:
    smart_resize. glm4v's function counts an image as two frames.
    """
    columns, rows = max(round(width / edge), 1), max(round(height / edge), 1)
    if most and columns * rows * edge**2 > most:
        scale = math.sqrt(width * height / most)
        return tuple(max(math.floor(n / scale / edge), 1) for n in (width, height))  # type: ignore[return-value]
    if least and columns * rows * edge**2 < least:
        scale = math.sqrt(least / (width * height))
        return tuple(math.ceil(n * scale / edge) for n in (width, height))  # type: ignore[return-value]
    return columns, rows


def filling(width: int, height: int, edge: int, most: int) -> Pair:
    """Return columns and rows of at most ``most`` squares, near the image's aspect ratio.

    Source: gemma4/image_processing_gemma4.py: get_aspect_ratio_preserving_size.
    """
    scale = math.sqrt(most * edge**2 / (width * height))
    columns, rows = (math.floor(scale * n / edge) for n in (width, height))
    if rows == 0:
        return min(width // height, most), 1
    return (columns, rows) if columns else (1, min(height // width, most))


def within(width: int, height: int, patch: int, merge: int, longest: int, most: int) -> Pair:
    """Return columns and rows of tokens of an image that is scaled to limits, then padded.

    Sources: kimi_k25/image_processing_kimi_k25.py: navit_resize; vLLM kimi_vl.py:
    get_num_image_tokens.

    Args:
        width: Width of the image, in pixels.
        height: Height of the image, in pixels.
        patch: Edge of a patch, in pixels.
        merge: Edge of the square that becomes one token, in patches.
        longest: Maximum length of each edge, in patches.
        most: Maximum number of patches of the image.
    """
    patches = max(1, height // patch) * max(1, width // patch)
    sides = [longest * patch / n for n in (width, height)]
    scale = min(1.0, math.sqrt(most / patches), *sides)
    scaled = (min(max(1, int(n * scale)), longest * patch) for n in (width, height))
    return tuple(-(-n // (merge * patch)) for n in scaled)  # type: ignore[return-value]


def canvas(width: int, height: int, tile: int, most: int) -> Pair:
    """Return columns and rows of the tile grid for which an image is enlarged or shrunk least.

    Source: llama4/image_processing_llama4.py: find_supported_resolutions, get_best_fit.
    """
    grids = [(c, r) for r in range(1, most + 1) for c in range(1, most // r + 1)]
    scales = {(c, r): min(c * tile / width, r * tile / height) for c, r in grids}
    larger = [scale for scale in scales.values() if scale >= 1]
    chosen = min(larger) if larger else max(scales.values())
    return min((grid for grid in grids if scales[grid] == chosen), key=math.prod)


def closest_aspect(width: int, height: int, tile: int, least: int, most: int) -> Pair:
    """Return columns and rows of the tile grid with the aspect ratio closest to the image's.

    Of equally close grids, the largest one with up to twice the image's area is used
    (got_ocr2/image_processing_got_ocr2.py: get_optimal_tiled_canvas).
    """
    grids = [(c, r) for c in range(1, most + 1) for r in range(1, most + 1)]
    kept = sorted((g for g in grids if least <= math.prod(g) <= most), key=math.prod)
    best, difference = (1, 1), math.inf
    for columns, rows in kept:
        own = abs(width / height - columns / rows)
        fits = width * height > 0.5 * tile**2 * columns * rows
        if own < difference or (own == difference and fits):
            best, difference = (columns, rows), own
    return best


def best_resolution(width: int, height: int, sizes: Iterable[Pair]) -> Pair:
    """Return the size (height, width) that keeps most of an image's pixels with least padding.

    Source: image_processing_utils.py: select_best_resolution.
    """

    def kept(size: Pair) -> tuple[int, int]:
        scale = min(size[1] / width, size[0] / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        return used, used - math.prod(size)

    return max(sizes, key=kept)


def unpadded(width: int, height: int, grid: Pair, edge: int, condensed: int) -> int:
    """Return the number of tokens of an image in a tile grid without padding, plus one per row.

    Sources: _get_unpadded_features of llava_next/processing_llava_next.py and of LLaVA-OneVision.

    Args:
        width: Width of the image, in pixels.
        height: Height of the image, in pixels.
        grid: Columns and rows of tiles.
        edge: Tokens along a tile's edge.
        condensed: Maximum tokens, as a number of tiles; 0 for no limit.
    """
    columns, rows = grid[0] * edge, grid[1] * edge
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    ratio = math.sqrt(columns * rows / (condensed * edge**2)) if condensed else 0.0
    if ratio > 1.1:
        columns, rows = int(columns // ratio), int(rows // ratio)
    return rows * (columns + 1)


def of_longest(width: int, height: int, tile: int, longest: int) -> Pair:
    """Return columns and rows of tiles of an image whose longest edge is scaled to ``longest``.

    Source: idefics3/image_processing_idefics3.py: get_number_of_image_patches.
    """
    upright = height > width
    short, long = sorted((width, height))
    scaled = int(longest / (long / short))
    scaled += scaled % 2
    if longest > _LONGEST:
        longest, scaled = _LONGEST, int(_LONGEST / (longest / scaled))
    along, across = math.ceil(longest / tile), math.ceil(max(scaled, 1) / tile)
    return (across, along) if upright else (along, across)


def cropped(width: int, height: int, tile: int, most: int, patch: int) -> tuple[int, int, int]:
    """Return the columns and rows of an image's tiles, and its number of tokens.

    Padding has no tokens. Each row of tokens has one more token. Source:
    phi4_multimodal/image_processing_phi4_multimodal.py: dynamic_preprocess, _preprocess.
    """
    columns, rows = math.ceil(width / tile), math.ceil(height / tile)
    if columns * rows > most:
        columns, rows = closest_aspect(width, height, tile, 1, most)
    scale = columns * tile / width, rows * tile / height
    pads = [0, 0]
    if scale[0] < scale[1]:
        pads[1] = rows * tile - int(height * scale[0])
    else:
        pads[0] = columns * tile - int(width * scale[1])
    kept = [
        _halves(n, tile // patch, pad // patch)
        for n, pad in zip((columns, rows), pads, strict=True)
    ]
    return columns, rows, kept[1] * (kept[0] + 1)


def _halves(count: int, edge: int, padding: int) -> int:
    """Return the tokens along a row or column of tiles without padding, one per two patches."""
    positions: Sequence[int] = [i * edge + j for i in range(count) for j in range(0, edge, 2)]
    return sum(position < count * edge - padding for position in positions)
