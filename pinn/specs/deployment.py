"""A model on GPUs under an engine configuration: the unit that coefficients belong to."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from pinn.errors import PinnError, RefusedError
from pinn.specs.drafts import Draft, draft_of
from pinn.specs.engine_defaults import served_release
from pinn.specs.expert_kernels import (
    AUTO,
    MARLIN,
    MARLIN_FORMAT,
    named_kernels,
    timed_apart,
    with_release_kernels,
)
from pinn.specs.gpu import GpuSpec
from pinn.specs.limits import MOST_REPLICAS, check_size
from pinn.specs.model import ModelSpec
from pinn.specs.own_kernels import decode_attention_time, expert_times
from pinn.specs.precision import Precision, precision
from pinn.specs.recipe import EffectiveRecipe
from pinn.specs.recipe_rules import effective_recipe
from pinn.specs.refusals import refusal_of
from pinn.specs.sampling import Sampling, overridden
from pinn.specs.serving import VLLM, ServingSpec
from pinn.specs.state_blocks import with_states


@dataclass(frozen=True)
class Deployment:
    """A checked (model, GPU, serving configuration) triple.

    Attributes:
        model: What is served.
        gpu: On what.
        serving: The engine and its flags.
        force: Whether it is timed although its engine refuses it (``pinn.specs.refusals``).

    Raises:
        RefusedError: If the engine refuses it, unless forced.
        PinnError: If there are no experts to spread, too many replicas, fewer layers than pipeline
            stages or fewer heads than GPUs, or the GPU has no kernels for mxfp4 experts with mxfp8
            activations.
    """

    model: ModelSpec
    gpu: GpuSpec
    serving: ServingSpec
    force: bool = field(default=False, compare=False)

    @cached_property
    def recipe(self) -> EffectiveRecipe:
        """What runs: the flags and the engine's defaults as physical quantities."""
        found = effective_recipe(self.serving, self.gpu, self.model.model_type)
        engine = self.serving.engine
        version = served_release(engine, self.serving.engine_version)
        found = with_release_kernels(found, self.model, self.gpu, engine, version)
        longest = self.serving.max_model_len or self.model.max_position
        kv, is_vllm = self.kv_precision(found), engine == VLLM
        return with_states(found, self.model, kv, longest, version if is_vllm else None, self.gpu)

    @cached_property
    def draft(self) -> Draft | None:
        """What drafts tokens on the GPU; None without speculative decoding, or where n-grams do."""
        drafts = self.recipe.speculation
        return None if drafts is None else draft_of(self.model, drafts)

    def __post_init__(self) -> None:
        asked = self.serving.enable_expert_parallel or self.recipe.expert_parallel_size > 1
        if asked and self.model.moe is None:
            # vllm/config/model.py: _verify_with_expert_parallelism
            raise PinnError(
                f"--enable-expert-parallel needs a model with experts and {self.model.name} has "
                "none: leave it out, as vLLM would refuse it"
            )
        check_size(
            self.serving.data_parallel_size,
            MOST_REPLICAS,
            "--data-parallel-size",
            "predict one replica with its share of the load",
        )
        capability = self.gpu.compute_capability
        mxfp8 = self.model.moe is not None and self.model.precisions.experts.name == "mxfp4_mxfp8"
        if mxfp8 and not 10 <= capability < 11:
            # vllm/model_executor/layers/quantization/mxfp4.py: get_mxfp4_backend
            raise PinnError(
                f"{self.gpu.name} has compute capability {capability}, kernels for mxfp4_mxfp8 "
                "need 10.x: serve the model as mxfp4, as vLLM does there whatever it is asked for"
            )
        if self.serving.pipeline_parallel_size > self.model.layers:
            raise PinnError(
                f"--pipeline-parallel-size {self.serving.pipeline_parallel_size} exceeds the "
                f"{self.model.layers} layers of {self.model.name}"
            )
        fewest = min((g.attention.heads for g in self.model.layer_groups if g.attention), default=0)
        tp = self.recipe.tensor_parallel_size
        if 0 < fewest < tp:
            raise PinnError(
                f"{tp} GPUs for tensor parallelism exceed the {fewest} "
                f"attention heads of {self.model.name}, and no head is cut: use fewer"
            )
        found = None if self.force else refusal_of(self)
        if found is not None:
            raise RefusedError(found.text)

    @property
    def kv_cache_precision(self) -> Precision:
        """Format of the KV cache: the flag's, or the checkpoint's where the flag is ``auto``."""
        return self.kv_precision(self.recipe)

    def kv_precision(self, recipe: EffectiveRecipe) -> Precision:
        """Format of keys and values under a recipe."""
        flag = recipe.kv_cache_dtype
        if flag == "auto":
            return self.model.kv_cache_precision
        return precision("fp8" if flag.startswith("fp8") else flag)

    @property
    def decode_attention_time(self) -> float:
        """Time of the engine's decode attention, relative to vLLM's."""
        kernels, gpu = self.recipe.decode_kernels, self.gpu
        return decode_attention_time(kernels, gpu, self.kv_cache_precision)

    def expert_times(self, model: ModelSpec) -> tuple[float, float]:
        """Of reading and of computing routed experts, relative to the kernels that vLLM runs.

        Args:
            model: The deployment's own, or what drafts for it.
        """
        if model.moe is None or named_kernels(self.recipe.moe_kernels) == MARLIN:
            return 1.0, 1.0
        return expert_times(self.recipe.mxfp4_kernels, self.gpu, model.precisions.experts.name)

    @property
    def expert_kernels(self) -> str:
        """Kernels of the experts where they are not the engine's own choice, else ``AUTO``."""
        if self.model.moe is None:
            return AUTO
        recipe, form = self.recipe, self.model.precisions.experts.name
        kernels = named_kernels(recipe.moe_kernels)
        return timed_apart(kernels, form, self.gpu, recipe.expert_parallel_size)

    @property
    def expert_kernel_format(self) -> Precision:
        """The format whose kernels multiply the experts: theirs, unless Marlin expands them."""
        if self.expert_kernels == MARLIN:
            return precision(MARLIN_FORMAT)
        return self.model.precisions.experts

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn: as the flags say, else as the model does."""
        flags = self.serving
        base = self.model.sampling if flags.generation_config == "auto" else Sampling()
        return overridden(base, flags.override_generation_config)
