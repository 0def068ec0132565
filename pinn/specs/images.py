"""Images in prompts: the tokens of an image, and the FLOP of encoding it."""

from collections.abc import Mapping
from dataclasses import dataclass

from pinn.errors import PinnError
from pinn.specs import encoder
from pinn.specs.encoder import EncoderSpec

GRID, ROWS, FIXED = "grid", "rows", "fixed"
#: ``model_type`` -> rule by which its processor divides an image (transformers 5.24). GRID: one
#: token per merged patch at the image's own size (models/qwen2_vl/image_processing_qwen2_vl.py:
#: smart_resize; equal in glm4v for one frame). ROWS: like GRID, but with one more token per row,
#: and images with a longer edge are scaled down (pixtral/processing_pixtral.py:
#: _get_num_multimodal_tokens). FIXED: a constant number of tokens (gemma3/processing_gemma3.py,
#: llava/processing_llava.py).
_RULES = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), GRID),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe"), GRID),
    **dict.fromkeys(("mistral3", "pixtral"), ROWS),
    **dict.fromkeys(("gemma3", "gemma3n", "llava"), FIXED),
}
_FIXED_KEYS = ("mm_tokens_per_image", "vision_soft_tokens_per_image", "image_seq_length")
#: Default maximum edge of Pixtral's images, in pixels (configuration_pixtral.py).
_LONGEST = 1024


@dataclass(frozen=True)
class ImageReader:
    """Rule by which a model's processor turns an image into tokens.

    Attributes:
        rule: ``grid``, ``rows`` or ``fixed``.
        patch: Length of a patch's edge, in pixels.
        merge: Length of an image token's edge, in patches.
        limit: Tokens of every image (rule ``fixed``), or maximum edge in pixels (rule ``rows``).
        encoder: Vision encoder that computes the patches.
    """

    rule: str
    patch: int
    merge: int
    limit: int
    encoder: EncoderSpec

    def tokens(self, width: int, height: int) -> int:
        """Return the number of prompt tokens of an image of ``width`` x ``height`` pixels."""
        columns, rows = self._grid(width, height)
        if self.rule == FIXED:
            return self.limit
        return rows * (columns + (self.rule == ROWS))

    def merged_patches(self, width: int, height: int) -> int:
        """Return the number of merged patches of an image: the projector's input rows."""
        columns, rows = self._grid(width, height)
        return columns * rows

    def encoder_flop(self, width: int, height: int) -> float:
        """Return the FLOP of encoding an image: matrix products and attention."""
        of, merged = self.encoder, self.merged_patches(width, height)
        patches = merged * self.merge**2
        weights = of.layer_weights + of.patch_values * of.width
        windowed = (of.layers - of.full_layers) * min(of.window_patches, patches)
        pairs = patches * (of.full_layers * patches + windowed)
        return 2.0 * (weights * patches + of.projector_weights * merged) + 4.0 * of.width * pairs

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the number of merged patches per row and per column of an image."""
        edge = self.patch * self.merge
        if self.rule == FIXED:
            side = max(round(self.limit**0.5), 1)
            return side, side
        if self.rule == GRID:
            return max(round(width / edge), 1), max(round(height / edge), 1)
        ratio = max(width / self.limit, height / self.limit, 1.0)
        return tuple(-(-int(pixels / ratio) // edge) for pixels in (width, height))  # type: ignore[return-value]


@dataclass(frozen=True)
class RequestImages:
    """Images of one size that follow each other in every prompt.

    Attributes:
        count: Number of images per prompt.
        size: Size of each image in pixels, such as ``1024x768``.
        tokens: Number of prompt tokens of each image.
        merged: Number of merged patches of each image.
        first_token: Number of prompt tokens before the first image.
    """

    count: int
    size: str
    tokens: int
    merged: int
    first_token: int = 0

    @property
    def pixels(self) -> tuple[int, int]:
        """Return the width and height of each image, in pixels."""
        return parse_size(self.size)

    @property
    def prompt_tokens(self) -> int:
        """Return the number of prompt tokens of all images together."""
        return self.count * self.tokens

    def begun_in(self, cached: int, new: int) -> int:
        """Return the number of images that begin within ``new`` tokens after ``cached`` tokens.

        >>> images = RequestImages(count=3, size="32x32", tokens=4, merged=4, first_token=2)
        >>> [images.begun_in(0, 2), images.begun_in(0, 3), images.begun_in(3, 100)]
        [0, 1, 2]
        """
        of = self.first_token, self.tokens, self.count
        return images_begun(cached + new, *of) - images_begun(cached, *of)


def images_begun(position: float, first_token: int, tokens: int, count: int) -> int:
    """Return how many of ``count`` images begin before a token position of the prompt."""
    return int(min(max(-((first_token - position) // tokens), 0), count))


def request_images(
    reader: ImageReader | None, name: str, count: int, size: str, first_token: int = 0
) -> RequestImages | None:
    """Return the images of each prompt, as its count and size specify; None for a count of 0.

    Args:
        reader: Rule by which the model turns an image into tokens; None if unknown.
        name: Name of the model, for error messages.
        count: Number of images per prompt.
        size: Size of each image in pixels, such as ``1024x768``.
        first_token: Number of prompt tokens before the first image.

    Raises:
        PinnError: If the model's image tokens are unknown, or the size cannot be read.
    """
    pixels = parse_size(size)
    if not count:
        return None
    if reader is None:
        fault = (
            f"--images-per-request: the number of tokens that {name} has for an image is unknown"
        )
        raise PinnError(f"{fault}: add the tokens of its images to --input-len")
    of_each = reader.tokens(*pixels), reader.merged_patches(*pixels)
    return RequestImages(count, size, *of_each, first_token)


def image_reader(config: Mapping[str, object]) -> ImageReader | None:
    """Return the rule by which a model turns an image into tokens; None if unknown."""
    vision, rule = config.get("vision_config"), _RULES.get(str(config.get("model_type")))
    if rule is None or not isinstance(vision, Mapping):
        return None
    if rule == FIXED and vision.get("model_type") == "pixtral":
        rule = ROWS
    patch = encoder.first_size(vision, "patch_size")
    merge = encoder.merged_patches(config, vision)
    limit = encoder.first_size(config, *_FIXED_KEYS)
    if rule == ROWS:
        limit = encoder.first_size(vision, "image_size") or _LONGEST
    found = encoder.read_encoder(config)
    if found is None or not (patch and found.width and found.layers):
        return None
    if rule == FIXED and not limit:
        return None
    if rule == FIXED:  # the encoder computes all patches and then pools them into tokens
        merge = max(round(encoder.first_size(vision, "image_size") / patch / limit**0.5), 1)
    return ImageReader(rule, patch, merge, limit, found)


def parse_size(text: str) -> tuple[int, int]:
    """Return the width and height in pixels of a size such as ``1024x768``.

    Raises:
        PinnError: If the text is not two positive whole numbers joined by ``x``.

    >>> parse_size("1024x768")
    (1024, 768)
    """
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() and 0 < int(part) <= 10**5 for part in parts):
        raise PinnError(f"--image-size must be pixels such as 1024x768, got {text!r:.40}")
    return int(parts[0]), int(parts[1])
