"""vLLM's engine flags as command-line options; one that is not given keeps vLLM's default."""

from __future__ import annotations

from typing import Annotated

import typer

_PANEL = "Engine, as in vLLM"


def _option(flag: str, text: str) -> typer.models.OptionInfo:
    return typer.Option(flag, help=text, rich_help_panel=_PANEL, show_default=False)


def _switch(name: str, text: str) -> typer.models.OptionInfo:
    return _option(f"--{name}/--no-{name}", text)


TensorParallelSize = Annotated[
    int | None, _option("--tensor-parallel-size", "GPUs that share each layer. [default: 1]")
]
PipelineParallelSize = Annotated[
    int | None, _option("--pipeline-parallel-size", "Stages of layers. [default: 1]")
]
DataParallelSize = Annotated[
    int | None,
    _option("--data-parallel-size", "Replicas of the attention; experts span them. [default: 1]"),
]
EnableExpertParallel = Annotated[
    bool | None, _switch("enable-expert-parallel", "Whole experts on each GPU. [default: no]")
]
MaxNumBatchedTokens = Annotated[
    int | None,
    _option("--max-num-batched-tokens", "Tokens per step. [default: vLLM's for the GPU]"),
]
MaxNumSeqs = Annotated[
    int | None, _option("--max-num-seqs", "Requests per step. [default: vLLM's for the GPU]")
]
MaxModelLen = Annotated[
    int | None, _option("--max-model-len", "Longest context. [default: the model's]")
]
GpuMemoryUtilization = Annotated[
    float | None, _option("--gpu-memory-utilization", "Share of memory to use. [default: 0.9]")
]
EnableChunkedPrefill = Annotated[
    bool | None, _switch("enable-chunked-prefill", "Cut long prompts. [default: yes]")
]
EnablePrefixCaching = Annotated[
    bool | None, _switch("enable-prefix-caching", "Reuse common prefixes. [default: yes]")
]
EnforceEager = Annotated[
    bool | None, _switch("enforce-eager", "Launch without CUDA graphs. [default: no]")
]
MaxCudagraphCaptureSize = Annotated[
    int | None,
    _option(
        "--max-cudagraph-capture-size",
        "Tokens of the largest step in a CUDA graph. [default: 2 x max-num-seqs, at most 512]",
    ),
]
BlockSize = Annotated[int | None, _option("--block-size", "Tokens per KV block. [default: 16]")]
CpuOffloadGb = Annotated[
    float | None,
    _option("--cpu-offload-gb", "GiB of weights per GPU kept in host memory. [default: 0]"),
]
KvCacheDtype = Annotated[
    str | None, _option("--kv-cache-dtype", "auto, bf16, fp16, fp8, fp8_e4m3 or fp8_e5m2.")
]
GenerationConfig = Annotated[
    str | None,
    _option("--generation-config", "Sample as the model asks (auto) or vLLM's own way (vllm)."),
]
OverrideGenerationConfig = Annotated[
    str | None,
    _option(
        "--override-generation-config",
        "JSON of sampling settings in place of the model's, or those that clients send.",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--quantization",
        "--precision",
        help="Serve the model as bf16, fp16, fp8, fp8_block, int8, int4, mxfp4, mxfp4_mxfp8 (8-bit "
        "activations) or nvfp4 (fp4). "
        "[default: as its config says]",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
