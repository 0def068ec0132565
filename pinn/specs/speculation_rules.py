"""From an engine's flags to its speculation, and what the engine changes for it."""

from __future__ import annotations

from pinn.errors import PinnError
from pinn.specs.engine_defaults import release, served_release
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

#: Running requests that SGLang lowers its limit to where none is given, for every algorithm
#: (``server_args.py: _handle_speculative_decoding``, from 0.5.13 on
#: ``arg_groups/speculative_hook.py``; 0.5.3.post1 to 0.5.23).
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
            _release(serving),
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


def fewer_requests(serving: ServingSpec, replicas: int) -> int | None:
    """Running requests of a replica that an engine lowers its limit to; None where it does not."""
    if serving.engine != SGLANG or serving.max_num_seqs is not None:
        return None
    return max(SGLANG_REQUESTS // replicas, 1)


def _release(serving: ServingSpec) -> tuple[int, ...]:
    return release(served_release(serving.engine, serving.engine_version))


def why_not_overlapped(serving: ServingSpec, method: str) -> Origin | None:
    """Why an engine plans no step while the one before runs; None where it does."""
    engine = serving.engine
    if engine == SGLANG:
        reason = _why_sglang_waits(_release(serving), method, serving.speculative_eagle_topk or 1)
        return Origin(DEFAULT, reason) if reason else None
    reason = _why_others_wait(engine, method)
    return Origin(ASSUMED, reason) if reason else None


def _why_sglang_waits(release: tuple[int, ...], method: str, branches: int) -> str:
    """Its second version of speculation overlaps, from 0.5.11 on; n-grams from 0.5.14 on."""
    if method == NGRAM and release < (0, 5, 14):
        return "sglang 0.5.3.post1 to 0.5.13 _handle_ngram: no overlap schedule with n-grams"
    if method != NGRAM and release < (0, 5, 11):
        return "sglang 0.5.3.post1 to 0.5.10 environ.py: SGLANG_ENABLE_SPEC_V2 is off"
    if method != NGRAM and release < (0, 5, 13) and branches > 1:
        return "sglang 0.5.11 and 0.5.12 server_args.py: no overlap schedule with trees of drafts"
    return ""


def _why_others_wait(engine: str, method: str) -> str:
    if engine == TRTLLM and method in (NGRAM, DRAFT_MODEL):
        return "tensorrt_llm: drafters of their own turn the overlap scheduler off, as remembered"
    return ""
