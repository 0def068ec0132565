"""Resolution of a deployment's flags into the engine's configuration."""

import contextlib
from functools import lru_cache

from pinn.engines import kernel_choice, recipe
from pinn.engines.recipe import EffectiveRecipe, Origin, RecipeFields, release
from pinn.engines.vllm_sglang_trtllm import SETTLERS
from pinn.errors import PinnError
from pinn.specs import speculation
from pinn.specs.gpu import GpuSpec
from pinn.specs.serving import DEEPEP, SGLANG, TRTLLM, VLLM, ServingSpec
from pinn.specs.speculation import NONE, Speculation
from pinn.units import MIB

# Speculative decoding requested by flags, and its effects on overlap and the request limit.

#: SGLang's default limit of running requests with any speculative algorithm (``server_args.py:
#: _handle_speculative_decoding``, from 0.5.13 on ``arg_groups/speculative_hook.py``; 0.5.3.post1 to
#: 0.5.23).
SGLANG_REQUESTS = 48

_NOT_ASKED = Origin(recipe.DEFAULT, "default of --speculative-config")


def asked_speculation(serving: ServingSpec, model_type: str) -> tuple[Speculation | None, Origin]:
    """Return the speculative decoding settings that the flags request, and their origin.

    The origin is an assumption if no acceptance rate is given.

    Raises:
        PinnError: If the speculation flags are invalid, or are combined with pipeline stages.
    """
    config = serving.speculative_config
    if config in (NONE, "") or (serving.engine == SGLANG and config.lower() == NONE):
        return None, _NOT_ASKED
    if serving.engine == VLLM:
        asked = speculation.asked_of_vllm(config)
    elif serving.engine == TRTLLM:
        asked = speculation.asked_of_trtllm(config)
    else:
        asked = speculation.asked_of_sglang(serving, model_type, _release(serving))
    found = speculation.with_acceptance(asked, serving.speculative_acceptance)
    if serving.pipeline_parallel_size > 1:
        raise PinnError(
            "speculative decoding together with pipeline parallelism is not modelled: omit "
            "--pipeline-parallel-size or --speculative-config"
        )
    if serving.speculative_acceptance:
        return found, Origin(recipe.FLAG, "--speculative-config, --speculative-acceptance")
    return found, Origin(recipe.ASSUMED, speculation.default_acceptance(found.method).text)


def _release(serving: ServingSpec) -> recipe.Release:
    return recipe.release(recipe.served_release(serving.engine, serving.engine_version))


def why_not_overlapped(serving: ServingSpec, method: str) -> Origin | None:
    """Return why speculation prevents steps from being scheduled ahead, or None if it does not.

    SGLang overlaps steps in its second version of speculation from 0.5.11 on, and for n-grams from
    0.5.14 on.
    """
    if serving.engine == TRTLLM and method in (speculation.NGRAM, speculation.DRAFT_MODEL):
        reason = (
            "does not support the overlap scheduler with n-gram or draft-model speculation "
            "(not verified in its source code)"
        )
        return Origin(recipe.ASSUMED, f"tensorrt_llm {reason}")
    if serving.engine != SGLANG:
        return None
    number, has_trees = _release(serving), (serving.speculative_eagle_topk or 1) > 1
    reason = ""
    if method == speculation.NGRAM:
        if number < (0, 5, 14):
            reason = (
                "0.5.3.post1 to 0.5.13 disable the overlap scheduler with n-gram speculation "
                "(server_args.py: _handle_ngram)"
            )
    elif number < (0, 5, 11):
        reason = "0.5.3.post1 to 0.5.10 disable SGLANG_ENABLE_SPEC_V2 by default (environ.py)"
    elif number < (0, 5, 13) and has_trees:
        reason = "0.5.11 and 0.5.12 disable the overlap scheduler with draft trees (server_args.py)"
    return Origin(recipe.DEFAULT, f"sglang {reason}") if reason else None


# Resolution of an engine's flags. Only this module and the engines' own modules depend on the
# engine.
#
# Omitted flags have the defaults in a table (``pinn.engines.recipe``). Settings without a flag,
# such as the type of schedule, are in the engine's own module, each with its source.


def effective_recipe(serving: ServingSpec, gpu: GpuSpec, model_type: str = "") -> EffectiveRecipe:
    """Return the resolved engine configuration for given flags and a GPU.

    Args:
        serving: Flags of the engine.
        gpu: GPU of the deployment.
        model_type: ``model_type`` of the model's config.json, on which some defaults depend.

    Raises:
        PinnError: If parallel sizes are incompatible, or the version is not a release.
    """
    asks = serving.speculative_config != NONE or model_type in recipe.models_named(serving.engine)
    decides = model_type if asks else ""
    return _shared_recipe(serving, gpu, decides, tuple(map(type, vars(serving).values())))


@lru_cache(maxsize=4096)
def _shared_recipe(
    serving: ServingSpec, gpu: GpuSpec, model_type: str, _kinds: tuple[type, ...]
) -> EffectiveRecipe:
    """Return the resolved configuration from a cache shared by models with the same defaults.

    ``_kinds``, the types of the flags' values, is part of the cache key: 1 and 1.0 compare equal,
    but each is shown as the user gave it.
    """
    found = RecipeFields(serving, gpu, model_type)
    found.put_design()
    _settle_parallelism(found)
    _settle_what_flags_say(found)
    for name in _OF_MEMORY:
        found.take_default(name)
    _settle_speculation(found)
    rules = recipe.SchedulerRules(pads_eager_ranks=False)
    found.put("scheduler", rules, "scheduler rules differ between releases only in vLLM")
    SETTLERS[serving.engine](found)
    _settle_fused_bytes(found)
    _settle_all_reduce(found)
    return found.recipe()


def _settle_what_flags_say(found: RecipeFields) -> None:
    """Set the settings that follow from a single flag in every engine."""
    flags = {"token_budget": "max_num_batched_tokens", "max_requests": "max_num_seqs"}
    flags |= {"chunked_prefill": "enable_chunked_prefill", "overlap": "async_scheduling"}
    flags |= {"prefix_caching": "enable_prefix_caching", "block_tokens": "block_size"}
    flags |= {"fused_all_reduce": "fuse_all_reduce", "sampler": "sampling_backend"}
    for name, flag in flags.items():
        found.take(name, flag)
    found.take("kv_cache_dtype", "kv_cache_dtype")
    found.take("moe_kernels", "moe_backend", kernel_choice.known_kernels)
    found.take("tf32", "float32_matmul_precision", lambda asked: asked != "highest")


#: Memory settings without a flag: memory that a release subtracts from its memory share, how it
#: counts the tokens of the KV cache, and the padding of experts' weights.
_OF_MEMORY = ("sampler_bytes", "counted_graphs", "counts_longest_requests", "padded_width")


def _settle_parallelism(found: RecipeFields) -> None:
    serving = found.serving
    found.take("pipeline_parallel_size", "pipeline_parallel_size")
    if serving.engine == VLLM:
        found.take("tensor_parallel_size", "tensor_parallel_size")
        found.take("data_parallel_size", "data_parallel_size")
    else:
        _settle_attention_ranks(found)
    ranks = found.values["tensor_parallel_size"] * found.values["data_parallel_size"]
    spread, origin = ranks, found.look_up("enable_expert_parallel")[1]
    if serving.moe_a2a_backend == DEEPEP:
        # sglang 0.5.9 server_args.py: _handle_a2a_moe sets ep_size to tp_size.
        origin = found.look_up("moe_a2a_backend")[1]
    elif not serving.enable_expert_parallel:
        # vLLM merges tensor- and data-parallel ranks for the experts
        # (``FusedMoEParallelConfig.make``): each rank has whole experts with
        # --enable-expert-parallel, and slices of all experts without it.
        spread = serving.ep_size or 1
        origin = found.look_up("ep_size")[1] if serving.ep_size else origin
    if ranks % spread:
        name = recipe.FLAGS["ep_size"].spelled_for(serving.engine)
        raise PinnError(
            f"{name} {spread} does not divide the {ranks} GPUs of a replica: use a divisor of "
            f"{ranks}"
        )
    found.put("expert_parallel_size", spread, origin.text, origin.kind)
    found.put("expert_tensor_parallel_size", ranks // spread, origin.text, origin.kind)


def _settle_attention_ranks(found: RecipeFields) -> None:
    """Set the attention ranks of SGLang and TensorRT-LLM.

    In these engines the tensor-parallel size counts all GPUs. Attention data parallelism divides
    these GPUs into ranks: ``dp_size`` ranks in SGLang (0.5.9 layers/dp_attention.py:
    compute_dp_attention_world_info), one per GPU in TensorRT-LLM (tensorrt_llm/mapping.py:
    attn_tp_size is 1 under enable_attention_dp).
    """
    serving = found.serving
    gpus, replicas = serving.tensor_parallel_size, serving.data_parallel_size
    if serving.engine == TRTLLM and serving.enable_dp_attention:
        if replicas not in (1, gpus):
            raise PinnError(
                f"the data-parallel size is {replicas}, but enable_attention_dp makes each of the "
                f"{gpus} GPUs an attention replica: omit the data-parallel size"
            )
        replicas = gpus
    if replicas > 1 and not serving.enable_dp_attention:
        raise PinnError(
            f"a data-parallel size of {replicas} without attention data parallelism makes "
            f"{serving.engine} start {replicas} independent servers: predict one of the servers at "
            f"1/{replicas} of the load, or add --enable-dp-attention"
        )
    if gpus % replicas:
        raise PinnError(
            f"{gpus} GPUs cannot be divided into {replicas} attention replicas: use a "
            f"data-parallel size that divides {gpus}"
        )
    origin = found.look_up("tensor_parallel_size")[1]
    if serving.enable_dp_attention:
        origin = found.look_up("enable_dp_attention")[1]
    found.put("tensor_parallel_size", gpus // replicas, origin.text, origin.kind)
    found.put("data_parallel_size", replicas, origin.text, origin.kind)


def _settle_all_reduce(found: RecipeFields) -> None:
    """Set the latency of the engine's all-reduce kernel relative to vLLM's own kernel.

    Without NVLink, all engines use NCCL, so the ratio is 1.

    SGLang and vLLM fuse all-reduce and norm with TensorRT-LLM's kernel, as included in FlashInfer
    (SGLang 0.5.10 layers/flashinfer_comm_fusion.py: comm; vLLM 0.16.0
    vllm/compilation/passes/fusion/allreduce_rms_fusion.py). Its latency is assumed to be that of
    TensorRT-LLM's default release.
    """
    own, kind = found.default("all_reduce_latency"), recipe.DESIGN
    if found.values["fused_all_reduce_bytes"]:
        version = recipe.reference_version(TRTLLM).value
        own, kind = recipe.engine_default(TRTLLM, own.flag, version, found.gpu), recipe.ASSUMED
    latency, source = float(own.value), own.source
    if not found.gpu.has_nvlink:
        latency, source = 1.0, "without NVLink, every engine uses NCCL for more than two GPUs"
    found.put("all_reduce_latency", latency, source, kind)
    # TensorRT-LLM's fused all-reduce kernel also quantizes its result.
    quantizes = found.serving.engine == TRTLLM and found.values["fused_all_reduce"]
    found.values["fused_quantization"] = quantizes


#: First vLLM release with a table of the maximum bytes of fused all-reduces. The table is assumed
#: for earlier releases, too.
_FUSED_LIMITS = "0.11.1"


def _settle_fused_bytes(found: RecipeFields) -> None:
    """Set a fused all-reduce's maximum message size, from vLLM's table or TensorRT-LLM's kernel."""
    fused, size = found.values["fused_all_reduce"] and found.gpu.has_nvlink, 0.0
    origin = found.origins["fused_all_reduce"]
    if fused and found.serving.engine != VLLM:
        size = recipe.OWN_KERNEL_BYTES
    elif fused:
        version = max(found.version, _FUSED_LIMITS, key=release)
        asked = VLLM, "fuse_all_reduce_most_mib", version, found.gpu
        with contextlib.suppress(PinnError):  # vLLM does not fuse if the table has no row
            line = recipe.engine_default(*asked, found.values["tensor_parallel_size"])
            size, origin = float(line.value) * MIB, Origin(recipe.DEFAULT, line.source)
    found.put("fused_all_reduce_bytes", size, origin.text, origin.kind)


def _settle_speculation(found: RecipeFields) -> None:
    """Set the fields for speculative decoding, and the fields that it disables or limits."""
    drafts, origin = asked_speculation(found.serving, found.model_type)
    found.put("speculation", drafts, origin.text, origin.kind)
    if drafts is None:
        return
    alone = why_not_overlapped(found.serving, drafts.method)
    if alone is not None:
        found.put("overlap", False, alone.text, alone.kind)
    if found.serving.engine == SGLANG and found.serving.max_num_seqs is None:
        fewer = max(SGLANG_REQUESTS // found.values["data_parallel_size"], 1)
        source = (
            "sglang 0.5.3.post1 to 0.5.23 limit running requests to 48 with speculative decoding"
        )
        found.put("max_requests", fewer, source, recipe.DEFAULT)
