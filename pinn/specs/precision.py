"""Number formats of weights and KV caches: bytes per element, and tensor-core math."""

from dataclasses import dataclass

from pinn.errors import PinnError

#: Bytes per activation element in memory between kernels (16 bits).
ACTIVATION_BYTES = 2.0


@dataclass(frozen=True)
class Precision:
    """A number format of weights or of the KV cache.

    Attributes:
        name: Key in ``PRECISIONS``.
        bytes_per_weight: Bytes per element, including its share of the block's scale.
        math: Tensor-core math that computes with the format: ``bf16``, ``fp8``, ``int8`` or
            ``fp4``; ``fp32`` for products outside the tensor cores. Weight-only formats are
            dequantized and run at the bf16 rate.
        dynamic_activations: Whether activations are quantized in every step, which takes extra
            kernels.
        timed_as: Key of the format whose kernel times are used if this format's kernels were not
            measured; otherwise empty.
    """

    name: str
    bytes_per_weight: float
    math: str
    dynamic_activations: bool = False
    timed_as: str = ""

    @property
    def kernels(self) -> str:
        """Return the name of the format whose measured kernel times are used for this format."""
        return self.timed_as or self.name

    @property
    def static_activations(self) -> bool:
        """Return whether activations are scaled by constant factors stored in the checkpoint."""
        return self.math == "fp8" and not self.dynamic_activations


#: Number formats by name. fp8 scales activations dynamically, by their values in each step.
#: fp8_static scales them by factors from the checkpoint, which the kernel before the matrix product
#: applies. Formats with block scales: fp8_block has an fp32 scale per 128 x 128 weights, int4 an
#: fp16 scale per group of 128 (or 32 at worst), mxfp4 an 8-bit scale per 32 (OCP MX specification
#: 1.0), nvfp4 an fp8 scale per 16, and bitsandbytes' nf4 an fp32 scale per 64. mxfp4 multiplies
#: 16-bit activations, at the 16-bit rate at best: ``w4a16_mxfp4`` of aiconfigurator-core 0.12.0
#: (``moe_perf``) reaches at most 625 TFLOP/s on B200 in vLLM 0.24.0 and SGLang 0.5.14, where mxfp8
#: reaches 2,490. mxfp4_mxfp8 is an mxfp4 checkpoint served with mxfp8 activations, which multiply
#: at the 8-bit rate (vLLM's VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8). Formats with ``_wo`` quantize
#: only weights, and multiply in 16 bits.
PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp32", 4.0, "bf16"),
        Precision("bf16", 2.0, "bf16"),
        Precision("fp16", 2.0, "bf16"),
        Precision("fp8", 1.0, "fp8", dynamic_activations=True),
        Precision("fp8_static", 1.0, "fp8"),
        Precision("fp8_block", 1.0 + 4 / 128**2, "fp8", dynamic_activations=True),
        Precision("int8", 1.0, "int8", dynamic_activations=True),
        Precision("int8_wo", 1.0 + 2 / 128, "bf16"),
        Precision("int4_wo", 0.5 + 2 / 128, "bf16"),
        Precision("mxfp4", 0.5 + 1 / 32, "bf16"),
        Precision("mxfp4_mxfp8", 0.5 + 1 / 32, "fp8", dynamic_activations=True),
        Precision("nvfp4", 0.5 + 1 / 16, "fp4", dynamic_activations=True),
        Precision("fp8_wo", 1.0, "bf16", timed_as="int8_wo"),
        Precision("mxfp8", 1.0 + 1 / 32, "fp8", True, timed_as="fp8_block"),
        Precision("nf4", 0.5 + 4 / 64, "bf16", timed_as="int4_wo"),
        Precision("nvfp4_wo", 0.5 + 1 / 16, "bf16", timed_as="int4_wo"),
        Precision("nvfp4_fp8", 0.5 + 1 / 16, "fp8", True, timed_as="mxfp4_mxfp8"),
        Precision("int4_fp8", 0.5 + 2 / 128, "fp8", True, timed_as="mxfp4_mxfp8"),
        Precision("int4_int8", 0.5 + 2 / 128, "int8", True, timed_as="mxfp4_mxfp8"),
    )
}

#: Weights that are stored and multiplied in fp32, outside the tensor cores, whatever the model's
#: own format: some routers (the trait ``fp32_router`` in ``data/models/types.json``).
FP32_PRODUCT = Precision("fp32", 4.0, "fp32")


def precision(name: str) -> Precision:
    """Return the number format with a name, such as ``fp8``.

    Raises:
        PinnError: If the name is not a key of ``PRECISIONS``.

    >>> precision("fp8").bytes_per_weight
    1.0
    """
    if name not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise PinnError(f"the number format {name!r} is unknown: use one of {known}")
    return PRECISIONS[name]
