"""Division of a multimodal model's encoder (images or audio) among the GPUs of a replica."""

from typing import NamedTuple

from pinn.engines.deployment import Deployment
from pinn.engines.recipe import engine_rows, release, served_release
from pinn.specs.encoder import EncoderSpec
from pinn.specs.serving import DATA


class EncoderRanks(NamedTuple):
    """Numbers of GPUs that share a multimodal model's encoder.

    Attributes:
        layers: Number of GPUs over which each of the encoder's matrices is sharded.
        items: Number of GPUs over which images are distributed; each GPU has a whole encoder.
    """

    layers: int
    items: int

    @property
    def description(self) -> str:
        """Describe how GPUs share the encoder's work; empty for a single GPU."""
        if self.items > 1:
            return f"images are spread over {self.items} GPUs"
        return f"matrices are divided among {self.layers} GPUs" if self.layers > 1 else ""


def encoder_ranks(deployment: Deployment, encoder: EncoderSpec) -> EncoderRanks:
    """Return how the GPUs of a replica share a multimodal model's encoder.

    In models that do not support ``--mm-encoder-tp-mode data``, matrices are sharded in any mode.
    Sources: vLLM 0.33.0 config/model.py; model_executor/models/vision.py: is_vit_use_data_parallel.
    """
    ranks = deployment.recipe.tensor_parallel_size
    if encoder.replicated:
        return EncoderRanks(1, 1)
    if ranks > 1 and encoder.patch_values and _is_spread(deployment, encoder.heads % ranks != 0):
        return EncoderRanks(1, ranks)
    return EncoderRanks(ranks, 1)


def ignores_data_mode(deployment: Deployment, encoder: EncoderSpec) -> bool:
    """Return whether ``--mm-encoder-tp-mode data`` is set but not supported by the encoder."""
    asked = deployment.serving.mm_encoder_tp_mode == DATA
    is_shared = deployment.recipe.tensor_parallel_size > 1
    return asked and is_shared and encoder_ranks(deployment, encoder).items == 1


def _is_spread(deployment: Deployment, is_indivisible: bool) -> bool:
    """Return whether images are distributed over GPUs that each have a whole encoder.

    Args:
        deployment: Model, GPU and engine configuration.
        is_indivisible: Whether the GPUs do not divide the encoder's attention heads evenly.
    """
    serving, model_type = deployment.serving, deployment.model.model_type
    own = release(served_release(serving.engine, serving.engine_version))
    rows = [
        row
        for row in engine_rows("encoder_data_parallel.csv")
        if row["engine"] == serving.engine
        and own >= release(row["since"])
        and model_type in row["model_types"].split()
    ]
    if serving.mm_encoder_tp_mode == DATA and rows:
        return True
    return is_indivisible and any(row["if_indivisible"] for row in rows)
