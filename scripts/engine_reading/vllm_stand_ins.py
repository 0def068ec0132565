"""What vLLM's rules find instead of a GPU, environment variables and installed libraries."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

from engine_reading.sandbox import Given, Symbol
from engine_reading.wheel import EngineSource, compiled

#: Libraries that vLLM's images for CUDA bring; ``humming`` and others it does not bring are absent.
_INSTALLED = (
    "has_flashinfer", "has_deep_gemm", "has_triton_kernels", "has_flashinfer_moe",
    "has_flashinfer_cutlass_fused_moe", "has_flashinfer_trtllm_fused_moe",
    "has_flashinfer_cutedsl_grouped_gemm_nt_masked", "has_flashinfer_cutedsl_moe_nvfp4",
    "has_flashinfer_b12x_moe", "has_flashinfer_cubin", "HAS_TRITON",
)  # fmt: skip
_ABSENT = ("has_humming", "has_cutedsl", "has_deep_ep", "has_pplx", "has_hpc", "has_tilelang")

#: Patterns of the names in ``data/gpus``: Hopper, and data centres' Blackwell.
HOPPER, BLACKWELL = "h(100|20|800)", "b[23]00"
#: Compute capability to the pattern of its GPUs' names.
GPUS = {9.0: HOPPER, 10.0: "b200", 10.3: "b300"}


class Gpu:
    """``current_platform`` of a GPU by NVIDIA."""

    device_name = "a GPU"

    def __init__(
        self, source: EngineSource, capability: float, gib: float = 80, name: str = "a GPU"
    ) -> None:
        self.source = source
        self.number = round(capability * 10)
        self.gib, self.name = gib, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("is_"):
            return lambda *_: False
        raise AttributeError(f"the platform's stand-in has no {name}")

    def is_cuda(self) -> bool:
        """It is."""
        return True

    def is_cuda_alike(self) -> bool:
        """It is."""
        return True

    def is_device_capability(self, asked: Any) -> bool:
        """Whether it is exactly this one."""
        return self.number == _number(asked)

    def is_device_capability_family(self, asked: int) -> bool:
        """Whether it is of this generation."""
        return self.number // 10 == asked // 10

    def has_device_capability(self, asked: Any) -> bool:
        """Whether it is this one or a later one."""
        return self.number >= _number(asked)

    def get_device_capability(self) -> Any:
        """Major and minor number."""
        return _Capability(divmod(self.number, 10))

    def support_deep_gemm(self) -> bool:
        """As ``vllm/platforms/cuda.py`` of the release answers."""
        name = "CudaPlatformBase.support_deep_gemm"
        return bool(compiled(self.source.function("vllm/platforms/cuda.py", name), {})(self))

    def supports_fp8(self) -> bool:
        """``vllm/platforms/cuda.py``."""
        return self.number >= 89

    def num_compute_units(self, _: int) -> int:
        """Multiprocessors: more than any rule asks for."""
        return 132

    def get_device_total_memory(self) -> float:
        """Bytes."""
        return self.gib * 2**30

    def fp8_dtype(self) -> Symbol:
        """A type of torch that is only compared."""
        return Symbol("torch.float8_e4m3fn")

    def get_device_name(self) -> str:
        """As the driver names it."""
        return self.name


class _Capability(tuple[int, int]):
    major = property(lambda self: self[0])
    minor = property(lambda self: self[1])

    def to_int(self) -> int:
        return self[0] * 10 + self[1]


def _number(asked: Any) -> int:
    return asked[0] * 10 + asked[1] if isinstance(asked, tuple) else int(asked)


class Envs:
    """``vllm.envs`` where no variable is set: each one's default as ``envs.py`` has it."""

    path, name = "vllm/envs.py", "environment_variables"

    def __init__(self, source: EngineSource) -> None:
        self._source = source

    def is_set(self, _: str) -> bool:
        """None is."""
        return False

    def __getattr__(self, name: str) -> Any:
        table = getattr(self._source.node(self.path, self.name), "value", None)
        if not isinstance(table, ast.Dict):
            raise self._source.unread(f"{self.path}: {self.name}", "it is no table")
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == name:
                return self._default(value)
        raise self._source.unread(f"{self.path}: {name}", "there is no such variable")

    def _default(self, value: ast.expr) -> Any:
        space = {
            "os": SimpleNamespace(environ={}, getenv=lambda _, default=None: default),
            "env_with_choices": lambda _, default, *__, **___: lambda: default,
            "maybe_convert_bool": lambda given: None if given is None else bool(int(given)),
            "maybe_convert_int": lambda given: None if given is None else int(given),
        }
        return eval(compile(ast.Expression(value), self.path, "eval"), space)()


class QuantizationArgs(Given):
    """Of a compressed-tensors checkpoint."""


class _Other:
    """Descriptions of checkpoints that are not asked about."""


def stand_ins(source: EngineSource, capability: float) -> dict[str, Any]:
    """Name to stand-in, for rules about one kind of GPU."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            quantization_config=None, hf_text_config=SimpleNamespace(model_type="")
        ),
        kernel_config=Given(moe_backend="auto"),
        parallel_config=Given(data_parallel_size=1),
    )
    rocm = SimpleNamespace(
        is_fused_moe_enabled=lambda: False,
        is_enabled=lambda: False,
        is_rdna_aiter_enabled=lambda: False,
    )
    return {
        "current_platform": Gpu(source, capability),
        "envs": Envs(source),
        "logger": Given(),
        "rocm_aiter_ops": rocm,
        "get_current_vllm_config": lambda: config,
        "get_current_vllm_config_or_none": lambda: config,
        "is_torch_equal_or_newer": lambda _: True,
        # csrc: cutlass_scaled_mm_supports_fp4, from compute capability 10.0.
        "cutlass_fp4_supported": lambda: Gpu(source, capability).number >= 100,
        "vllm_is_batch_invariant": lambda: False,
        "QuantizationArgs": QuantizationArgs,
        **dict.fromkeys(("AutoAWQConfig", "AutoGPTQConfig", "MoeWNA16Config"), _Other),
        **dict.fromkeys(_INSTALLED, lambda *_: True),
        **dict.fromkeys(_ABSENT, lambda *_: False),
    }
