"""An image or an audio clip of a prompt: its tokens, and what its encoder computes."""

from dataclasses import dataclass
from typing import NamedTuple

from pinn.specs.encoder import EncoderSpec


class MediaItem(NamedTuple):
    """An image or an audio clip, as the engine computes it.

    Attributes:
        tokens: Prompt tokens, with separators.
        rows: Rows that the projector multiplies.
        patches: Positions that pass the encoder's layers.
        sequence: Positions that attend to each other in layers of full attention.
    """

    tokens: int
    rows: int
    patches: int
    sequence: int

    def flop(self, encoder: EncoderSpec) -> float:
        """Return the operations of encoding the item: matrix products and attention."""
        weights = encoder.layer_weights + encoder.patch_values * encoder.width
        weights += sum(p.rows * p.copies * p.inputs * p.outputs for p in encoder.products)
        windowed = encoder.layers - encoder.full_layers
        windowed *= min(encoder.window_patches, self.sequence)
        pairs = self.patches * (encoder.full_layers * self.sequence + windowed)
        products = weights * self.patches + encoder.projector_weights * self.rows
        return 2.0 * products + 4.0 * (encoder.attention_width or encoder.width) * pairs


@dataclass(frozen=True)
class Unread:
    """Images or audio that a model reads, but whose tokens or encoder are unknown here.

    Attributes:
        reason: What is unknown, as text.
    """

    reason: str
