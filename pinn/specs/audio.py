"""Audio clips in prompts: the tokens of a clip, and the work of encoding it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pinn.specs import encoder
from pinn.specs.config_fields import models_file
from pinn.specs.encoder import EncoderSpec
from pinn.specs.media import MediaItem, Unread

#: Audio samples per second, and number of samples between successive spectrogram frames, in all
#: supported feature extractors (transformers 5.24: whisper, gemma3n, gemma4 and phi4_multimodal,
#: feature_extraction_<type>.py).
SAMPLES_PER_S, HOP = 16_000, 160


class Step(NamedTuple):
    """A stage (such as a convolution with stride) that merges several positions into one.

    Attributes:
        rounding: Rounding of the number of merged positions: ``up`` or ``down``.
        divisor: Number of positions that become one position.
    """

    rounding: str
    divisor: int


def passed(positions: int, steps: tuple[Step, ...]) -> int:
    """Return the number of positions in a sequence after stages that merge positions."""
    for rounding, divisor in steps:
        positions = -(-positions // divisor) if rounding == "up" else positions // divisor
    return positions


@dataclass(frozen=True)
class AudioReader:
    """Conversion of audio into tokens by a model's processor and encoder.

    Attributes:
        encoder: Encoder that processes the clip's spectrogram.
        before: Merging stages between spectrogram frames and the encoder's layers.
        after: Merging stages between the encoder's layers and the prompt's tokens.
        first: Number of audio samples in the first spectrogram frame.
        chunk: Number of spectrogram frames that the convolutions process at once; 0 for all.
        attends: Number of frames whose positions attend to each other; 0 for all frames of a chunk.
        padded: Whether the last chunk is padded to full length before it is encoded.
        filled: Whether the padding of a clip also becomes tokens of the prompt.
        cut_s: Length in seconds beyond which audio is truncated; 0 for no limit.
        fixed_tokens: Tokens of every clip; 0 if the number depends on the clip's length.
        most_tokens: Maximum tokens of a clip; 0 for no limit.
    """

    encoder: EncoderSpec
    before: tuple[Step, ...]
    after: tuple[Step, ...]
    first: int = 1
    chunk: int = 0
    attends: int = 0
    padded: bool = False
    filled: bool = False
    cut_s: int = 0
    fixed_tokens: int = 0
    most_tokens: int = 0

    def item(self, seconds: float) -> MediaItem:
        """Return the prompt tokens and encoder work of a clip, given its length in seconds."""
        samples = round(SAMPLES_PER_S * (min(seconds, self.cut_s) if self.cut_s else seconds))
        frames = max((samples - self.first) // HOP + 1, 1)
        own = self._chunks(frames)
        encoded = [max(self.chunk, n) for n in own] if self.padded else own
        positions = [max(passed(n, self.before), 1) for n in encoded]
        rows = sum(max(passed(n, self.after), 1) for n in positions)
        counted = encoded if self.filled else own
        tokens = sum(passed(passed(n, self.before), self.after) for n in counted)
        if self.most_tokens:
            tokens = min(tokens, self.most_tokens)
        patches = sum(positions)
        near = sum(passed(n, self.before) for n in self._chunks(self.attends or max(encoded)))
        return MediaItem(max(self.fixed_tokens or tokens, 1), rows, patches, min(near, patches))

    def _chunks(self, frames: int) -> list[int]:
        """Return the number of spectrogram frames in each chunk of a clip."""
        whole, rest = divmod(frames, self.chunk or frames)
        return [self.chunk or frames] * whole + [rest] * bool(rest)


def audio_reader(config: Mapping[str, object]) -> AudioReader | Unread | None:
    """Return how a model converts audio into tokens, or None without audio input.

    Args:
        config: Content of a config.json.
    """
    config = encoder.thinker(config)
    own, kind = encoder.encoder_config(config, encoder.AUDIO), str(config.get("model_type", ""))
    rules: list[dict[str, Any]] = models_file("encoders.json")["clips"]
    found = next((each for each in rules if kind in each["types"]), None)
    if found is None:
        said = models_file("encoders.json")["unread"].get(kind)
        known = own is not None or said
        return Unread(said or f"no rule is known for model_type {kind!r}") if known else None
    if own is None:
        return None
    spec = encoder.read_encoder(config, encoder.AUDIO)
    if spec is None or not (spec.width and spec.layers and spec.heads):
        return Unread("audio_config lacks the encoder's width, layers or attention heads")
    sizes = encoder.sizes_of(config, own)
    number = {n: encoder.size_of(found.get(n, 0), sizes) for n in _NUMBERS}
    if near := encoder.size_of(found.get("near", 0), sizes):
        spec = replace(spec, full_layers=0, window_patches=near)
    steps = {
        name: tuple(Step(way, encoder.size_of(n, sizes)) for way, n in found.get(name, ()))
        for name in ("before", "after")
    }
    lacking = [name for name, each in steps.items() if any(not step.divisor for step in each)]
    if lacking or ("attends" in found and not number["attends"]):
        return Unread("config.json lacks the lengths of its audio encoder's windows or stages")
    values: dict[str, Any] = {**steps, **number, "first": number["first"] or 1}
    values |= {name: bool(found.get(name)) for name in ("padded", "filled")}
    return AudioReader(spec, **values)


#: Whole numbers in an entry of encoders.json, named like the fields of :class:`AudioReader`.
_NUMBERS = ("first", "chunk", "attends", "cut_s", "fixed_tokens", "most_tokens")
