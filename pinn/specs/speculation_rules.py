"""From an engine's flags to its speculation, and what the engine changes for it."""

from __future__ import annotations

from pinn.errors import PinnError
from pinn.specs.recipe import ASSUMED, DEFAULT, FLAG, Origin
from pinn.specs.serving import SGLANG, TRTLLM, VLLM, ServingSpec
from pinn.specs.speculation import (
    DEFAULT_ACCEPTANCE,
    DRAFT_MODEL,
    NGRAM,
    NONE,
    Speculation,
    asked_of_sglang,
    asked_of_trtllm,
    asked_of_vllm,
    speculation,
)

#: Running requests that SGLang lowers its limit to where none is given (0.5.9 ``server_args.py:
#: _handle_speculative_decoding``), as remembered.
SGLANG_REQUESTS = 48

_NOT_ASKED = Origin(DEFAULT, "--speculative-config is not given")


def asked_speculation(serving: ServingSpec, model_type: str) -> tuple[Speculation | None, Origin]:
    """What flags ask for, and what set it: an assumption where nobody gave the acceptance.

    Raises:
        PinnError: If the flags cannot be read, or pipeline stages are asked for too.
    """
    config = serving.speculative_config
    if config == NONE:
        return None, _NOT_ASKED
    if serving.engine == VLLM:
        asked = asked_of_vllm(config)
    elif serving.engine == TRTLLM:
        asked = asked_of_trtllm(config)
    else:
        asked = asked_of_sglang(
            config,
            serving.speculative_num_steps,
            serving.speculative_eagle_topk,
            serving.speculative_num_draft_tokens,
            serving.speculative_draft_model_path,
            model_type,
        )
    found = speculation(asked, serving.speculative_acceptance)
    if found is None:
        return None, _NOT_ASKED
    if serving.pipeline_parallel_size > 1:
        raise PinnError(
            "speculative decoding is not modelled with pipeline stages: leave "
            "--pipeline-parallel-size or --speculative-config out"
        )
    if serving.speculative_acceptance:
        return found, Origin(FLAG, "--speculative-config, --speculative-acceptance")
    return found, Origin(ASSUMED, DEFAULT_ACCEPTANCE[found.method].text)


def fewer_requests(serving: ServingSpec, method: str, replicas: int) -> int | None:
    """Running requests of a replica that an engine lowers its limit to; None where it does not."""
    if serving.engine != SGLANG or method == NGRAM or serving.max_num_seqs is not None:
        return None
    return max(SGLANG_REQUESTS // replicas, 1)


def why_not_overlapped(engine: str, method: str) -> str:
    """Why SGLang or TensorRT-LLM plans no step while the one before runs; empty where it does."""
    if engine == SGLANG:
        return (
            "sglang 0.5.9 server_args.py: no overlap schedule with the first version of its "
            "speculation, as remembered"
        )
    if engine == TRTLLM and method in (NGRAM, DRAFT_MODEL):
        return "tensorrt_llm: drafters of their own turn the overlap scheduler off, as remembered"
    return ""
