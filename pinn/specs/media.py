"""An image or an audio clip in a prompt: its tokens, and the work of encoding it."""

from dataclasses import dataclass
from typing import NamedTuple

from pinn.specs.encoder import EncoderSpec


class MediaItem(NamedTuple):
    """Prompt tokens and encoder work of an image or an audio clip.

    Attributes:
        tokens: Number of prompt tokens, including separators.
        rows: Number of rows of the projector's input.
        patches: Number of positions (patches or audio frames) that the encoder's layers process.
        sequence: Number of positions that attend to each other in layers with full attention.
    """

    tokens: int
    rows: int
    patches: int
    sequence: int

    def flop(self, encoder: EncoderSpec) -> float:
        """Return the FLOP of encoding the image or clip: matrix products and attention."""
        weights = encoder.layer_weights + encoder.patch_values * encoder.width
        weights += sum(p.rows * p.copies * p.inputs * p.outputs for p in encoder.products)
        windowed = encoder.layers - encoder.full_layers
        windowed *= min(encoder.window_patches, self.sequence)
        pairs = self.patches * (encoder.full_layers * self.sequence + windowed)
        products = weights * self.patches + encoder.projector_weights * self.rows
        return 2.0 * products + 4.0 * (encoder.attention_width or encoder.width) * pairs


@dataclass(frozen=True)
class Unread:
    """Image or audio input of a model, whose prompt tokens or encoder sizes are unknown.

    Attributes:
        reason: Statement of what is unknown.
    """

    reason: str
