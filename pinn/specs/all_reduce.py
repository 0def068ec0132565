"""All-reduces of the engines: how long small ones take, and what is fused with them."""

from pinn.specs.serving import SGLANG, TRTLLM, VLLM

#: Time of an all-reduce of at most 256 KiB launched from a CUDA graph, relative to vLLM 0.24.0's:
#: geometric mean over 2, 4 and 8 ranks on H100, H200, B200 and B300 in the tables of
#: aiconfigurator-core 0.12.0 (``custom_allreduce_perf``).
ALL_REDUCE_LATENCY = {
    VLLM: (1.0, "what others are measured against"),
    SGLANG: (0.65, "sglang 0.5.14 in the tables of aiconfigurator-core 0.12.0"),
    TRTLLM: (0.69, "trtllm 1.3.0rc20 in the tables of aiconfigurator-core 0.12.0"),
}
#: Where TensorRT-LLM quantizes what an all-reduce leaves, in the kernel of the all-reduce.
QUANTIZING_ALL_REDUCE = (
    "tensorrt_llm/functional.py: AllReduceFusionOp RESIDUAL_RMS_NORM_QUANT_FP8 and _NVFP4; "
    "SGLang's flashinfer_comm_fusion.py fuses the norm alone; as remembered, not read again"
)
