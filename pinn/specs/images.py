"""Images in prompts: the tokens of an image, and the work of encoding it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pinn.errors import PinnError
from pinn.specs import encoder, tiles
from pinn.specs.config_fields import models_file
from pinn.specs.encoder import EncoderSpec
from pinn.specs.media import MediaItem, Unread


class ImageSizes(NamedTuple):
    """Sizes that determine how a model's processor scales an image and splits it into tiles.

    Attributes:
        patch: Edge of a patch, in pixels.
        merge: Edge of the square of patches that becomes one token, in patches.
        tile: Edge of a tile (the image that the encoder takes at once), in pixels; 0 for any size.
        least: Minimum number of pixels (rule ``grid``) or tiles.
        most: Maximum number of pixels (rule ``grid``), patches (rule ``padded``), tokens or tiles.
        longest: Maximum length of an image's longest edge, in pixels, or in patches (rule
            ``padded``).
        sizes: Sizes (height, width) to which images are fitted, in pixels.
        condensed: Maximum tokens of an image, as a number of tiles (LLaVA-OneVision); 0 for no
            limit.
    """

    patch: int
    merge: int
    tile: int = 0
    least: int = 0
    most: int = 0
    longest: int = 0
    sizes: tuple[tuple[int, int], ...] = ()
    condensed: int = 0

    @property
    def edge(self) -> int:
        """Return the edge of the square of pixels that becomes one token, in pixels."""
        return self.patch * self.merge

    @property
    def tile_edge(self) -> int:
        """Return the number of tokens along the edge of a tile."""
        return self.tile // self.patch // self.merge

    def whole(self, columns: int, rows: int, tokens: int = 0) -> MediaItem:
        """Return the tokens and encoder work of an image that is encoded as a whole, not in tiles.

        Args:
            columns: Number of merged patches (squares that become one token) per row.
            rows: Number of merged patches per column.
            tokens: Number of prompt tokens; 0 for one per merged patch.
        """
        merged = columns * rows
        patches = merged * self.merge**2
        return MediaItem(tokens or merged, merged, patches, patches)

    def tiled(self, count: int, tokens: int) -> MediaItem:
        """Return the tokens and encoder work of a tiled image; patches attend within their tile."""
        patches = (self.tile // self.patch) ** 2
        return MediaItem(tokens, count * self.tile_edge**2, count * patches, patches)


def _rows(of: ImageSizes, width: int, height: int) -> MediaItem:
    """Return tokens and encoder work of an image with a token per merged patch and per row.

    Images whose edges exceed ``longest`` are scaled down. Source:
    pixtral/processing_pixtral.py: _get_num_multimodal_tokens.
    """
    ratio = max(width / of.longest, height / of.longest, 1.0)
    columns, rows = (-(-int(pixels / ratio) // of.edge) for pixels in (width, height))
    return of.whole(columns, rows, rows * (columns + 1))


def _fixed(of: ImageSizes, _width: int, _height: int) -> MediaItem:
    """Return tokens and encoder work of an image that has a constant number of tokens.

    Sources: gemma3/processing_gemma3.py, llava/processing_llava.py.
    """
    side = max(round(of.most**0.5), 1)
    return of.whole(side, side, of.most)


def _canvas(of: ImageSizes, width: int, height: int) -> MediaItem:
    """Return tokens and encoder work of an image on a canvas of tiles, and its thumbnail.

    The canvas is the one that requires the least scaling of the image. The tokens include
    separators of tiles. Source: llama4/processing_llama4.py: _prompt_split_image.
    """
    columns, rows = tiles.canvas(width, height, of.tile, of.most)
    cut = columns * rows if columns * rows > 1 else 0
    return of.tiled(cut + 1, (cut + 1) * of.tile_edge**2 + cut + 3)


def _aspect(of: ImageSizes, width: int, height: int) -> MediaItem:
    """Return tokens and encoder work of an image in tiles of the closest aspect ratio.

    Sources: got_ocr2/image_processing_got_ocr2.py: get_number_of_image_patches;
    internvl/processing_internvl.py: _get_num_multimodal_tokens.
    """
    columns, rows = tiles.closest_aspect(width, height, of.tile, of.least, of.most)
    count = columns * rows + (columns * rows > 1)
    return of.tiled(count, count * of.tile_edge**2 + 2)


def _anyres(of: ImageSizes, width: int, height: int) -> MediaItem:
    """Return tokens and encoder work of an image tiled at the best resolution, and a thumbnail.

    Padding has no tokens; each row of patches has one more token. Sources:
    llava_next/processing_llava_next.py, llava_onevision/processing_llava_onevision.py:
    _get_number_of_features.
    """
    best = tiles.best_resolution(width, height, of.sizes)
    columns, rows = best[1] // of.tile, best[0] // of.tile
    cut = tiles.unpadded(width, height, (columns, rows), of.tile_edge, of.condensed)
    return of.tiled(columns * rows + 1, cut + of.tile_edge**2)


def _split(of: ImageSizes, width: int, height: int) -> MediaItem:
    """Return tokens and encoder work of an image split into tiles, and a thumbnail.

    Each tile has two separator tokens, each row of tiles one, and the thumbnail three. Source:
    idefics3/processing_idefics3.py: _get_num_multimodal_tokens.
    """
    columns, rows = tiles.of_longest(width, height, of.tile, of.longest or 4 * of.tile)
    each = of.tile_edge**2
    if columns * rows == 1:
        return of.tiled(1, each + 3)
    return of.tiled(columns * rows + 1, each + 3 + rows * (columns * (each + 2) + 1))


def _crops(of: ImageSizes, width: int, height: int) -> MediaItem:
    """Return tokens and encoder work of an image tiled at its original size, and a thumbnail.

    Padding has no tokens; each row of patches has one more token. Source:
    phi4_multimodal/image_processing_phi4_multimodal.py: _preprocess.
    """
    columns, rows, cut = tiles.cropped(width, height, of.tile, of.most, of.edge // of.merge)
    return of.tiled(columns * rows + 1, of.tile_edge**2 + 1 + cut + of.tile_edge)


#: Functions of the image rules, by name in data/models/encoders.json. The rules are those of the
#: processors in transformers 5.24.
_RULES: dict[str, Callable[[ImageSizes, int, int], MediaItem]] = {
    "grid": lambda of, w, h: of.whole(*tiles.between(w, h, of.edge, of.least, of.most)),
    "scaled": lambda of, w, h: of.whole(*tiles.filling(w, h, of.edge, of.most)),
    "padded": lambda of, w, h: of.whole(
        *tiles.within(w, h, of.patch, of.merge, of.longest, of.most)
    ),
    "rows": _rows, "fixed": _fixed, "canvas": _canvas, "aspect": _aspect, "anyres": _anyres,
    "split": _split, "crops": _crops,
}  # fmt: skip


@dataclass(frozen=True)
class ImageReader:
    """Conversion of an image into tokens by a model's processor.

    Attributes:
        rule: Name of the rule, such as ``grid``.
        sizes: Sizes with which the rule scales and splits an image.
        encoder: Vision encoder that computes the patches.
    """

    rule: str
    sizes: ImageSizes
    encoder: EncoderSpec

    def item(self, width: int, height: int) -> MediaItem:
        """Return the prompt tokens and encoder work of an image, given its size in pixels."""
        return _RULES[self.rule](self.sizes, width, height)


def image_reader(
    config: Mapping[str, object], processor: Mapping[str, object] | None = None
) -> ImageReader | Unread | None:
    """Return how a model converts an image into tokens, or None without image input.

    Args:
        config: Content of a config.json.
        processor: Content of a preprocessor_config.json with the limits of image sizes; None for
            the defaults of the processor's class.
    """
    config = encoder.thinker(config)
    own, kind = encoder.encoder_config(config, encoder.VISION), str(config.get("model_type", ""))
    if own is None:
        return None
    rules: list[dict[str, Any]] = models_file("encoders.json")["images"]
    found = next((each for each in rules if kind in each["types"]), None)
    if found is None:
        said = models_file("encoders.json")["unread"].get(kind)
        return Unread(str(said or f"no rule is known for the tokens of model_type {kind!r}"))
    rule = found["rule"]
    if rule == "fixed" and own.get("model_type") == "pixtral":
        return _reader(config, own, _LLAVA_PIXTRAL, processor)
    return _reader(config, own, found, processor)


_PINPOINTS = "image_grid_pinpoints"
#: Rule and sizes of LLaVA models with Pixtral's encoder (llava/processing_llava.py:
#: PixtralProcessor).
_LLAVA_PIXTRAL = {"rule": "rows", "longest": ["image_size", 1024]}


def _reader(
    config: Mapping[str, object],
    own: Mapping[str, Any],
    found: Mapping[str, Any],
    processor: Mapping[str, object] | None,
) -> ImageReader | Unread:
    """Return an image reader with the sizes for its rule, or the reason that there is none."""
    places = (processor or {}, own, config)
    limits = {
        n: _limit(found.get(n, ()), places) // found.get("frames", 1)
        for n in ("least", "most", "longest")
    }
    patch, tile = (encoder.first_size(own, name) for name in ("patch_size", "image_size"))
    spec = encoder.read_encoder(config)
    if spec is None or not (patch and spec.width and spec.layers):
        return Unread("vision_config lacks the encoder's patch size, width or layers")
    merge = encoder.merged_patches(config, own)
    rule = found["rule"]
    if rule == "fixed":
        if not limits["most"]:
            return Unread(f"config.json lacks {' or '.join(found['most'])}, the tokens per image")
        # The encoder computes all patches before pooling them into tokens.
        merge = max(round(tile / patch / limits["most"] ** 0.5), 1)
    if rule == "crops":
        merge = 2  # patches per edge that img_processor's average pool merges
    given: Any = next((p[_PINPOINTS] for p in places if p.get(_PINPOINTS)), None)
    if rule == "anyres" and not isinstance(given, list):
        return Unread(f"config.json lacks {_PINPOINTS}, the sizes to which images are resized")
    pinned = tuple((int(a), int(b)) for a, b in given) if rule == "anyres" else ()
    named = str(config.get("vision_aspect_ratio") or "")
    condensed = int(named.rpartition("_")[2]) if named.startswith("anyres_max_") else 0
    if processor and rule == "aspect" and processor.get("crop_to_patches") is False:
        limits["most"] = 1
    sizes = ImageSizes(patch, merge, tile, sizes=pinned, condensed=condensed, **limits)
    return ImageReader(rule, sizes, spec)


def _limit(keys: list[str | int], places: tuple[Mapping[str, object], ...]) -> int:
    """Return a limit of image sizes: the first positive whole number under ``keys`` in ``places``.

    If there is none, return the number in ``keys`` (the default), else 0.
    """
    for place in places:
        for key in keys:
            value = encoder.at(place, key) if isinstance(key, str) else None
            if type(value) is int and value > 0:
                return value
    return next((key for key in keys if isinstance(key, int)), 0)


def parse_size(text: str) -> tuple[int, int]:
    """Return the width and height in pixels of a size such as ``1024x768``.

    Raises:
        PinnError: If the text is not two positive whole numbers joined by ``x``.

    >>> parse_size("1024x768")
    (1024, 768)
    """
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() and 0 < int(part) <= 10**5 for part in parts):
        raise PinnError(
            f"--image-size must be width and height in pixels such as 1024x768, got {text!r:.40}"
        )
    return int(parts[0]), int(parts[1])
