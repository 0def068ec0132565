"""Stand-ins for the GPU, environment variables and libraries that vLLM's rules use."""

from types import SimpleNamespace
from typing import Any, NamedTuple

from engine_reading.sandbox import Given, Symbol, World
from engine_reading.wheel import EngineSource, compiled

#: vLLM functions that check for libraries installed in its CUDA images. All other libraries, such
#: as ``humming``, count as missing.
_INSTALLED = (
    "has_flashinfer", "has_deep_gemm", "has_triton_kernels", "has_flashinfer_moe",
    "has_flashinfer_cutlass_fused_moe", "has_flashinfer_trtllm_fused_moe",
    "has_flashinfer_cutedsl_grouped_gemm_nt_masked", "has_flashinfer_cutedsl_moe_nvfp4",
    "has_flashinfer_b12x_moe", "has_flashinfer_cubin", "HAS_TRITON",
)  # fmt: skip
_ABSENT = ("has_humming", "has_cutedsl", "has_deep_ep", "has_pplx", "has_hpc", "has_tilelang")

#: Patterns of GPU names in ``data/gpus``: Hopper, and data-centre Blackwell.
HOPPER, BLACKWELL = "h(100|20|800)", "b[23]00"
#: Patterns of the names of GPUs, by their compute capability.
GPUS = {9.0: HOPPER, 10.0: "b200", 10.3: "b300"}


class Platform(Given):
    """Stand-in for a vLLM platform; each ``is_...`` function returns False unless it is set."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("is_"):
            return lambda *_: False
        raise AttributeError(f"the stand-in of vLLM's platform has no attribute {name!r}")


class _Capability(NamedTuple):
    major: int
    minor: int

    def to_int(self) -> int:
        return self.major * 10 + self.minor


def gpu(source: EngineSource, capability: float, gib: float = 80, name: str = "a GPU") -> Platform:
    """Return a stand-in for ``current_platform`` of an NVIDIA GPU.

    It has enough multiprocessors for any rule. ``vllm/platforms/cuda.py`` of the release decides
    whether the GPU supports DeepGEMM.
    """
    own = round(capability * 10)
    deep = "vllm/platforms/cuda.py: CudaPlatformBase.support_deep_gemm"
    found = Platform(
        device_name="a GPU",
        is_cuda=lambda: True,
        is_cuda_alike=lambda: True,
        is_device_capability=lambda asked: own == _number(asked),
        is_device_capability_family=lambda asked: own // 10 == asked // 10,
        has_device_capability=lambda asked: own >= _number(asked),
        get_device_capability=lambda: _Capability(*divmod(own, 10)),
        support_deep_gemm=lambda: bool(compiled(source.node(deep), {})(found)),
        supports_fp8=lambda: own >= 89,
        num_compute_units=lambda _: 132,
        get_device_total_memory=lambda: gib * 2**30,
        fp8_dtype=lambda: Symbol("torch.float8_e4m3fn"),
        get_device_name=lambda: name,
    )
    return found


def _number(asked: Any) -> int:
    return asked[0] * 10 + asked[1] if isinstance(asked, tuple) else int(asked)


class Envs:
    """Stand-in for ``vllm.envs`` with no variables set, so that each one has its default."""

    path = "vllm/envs.py"

    def __init__(self, source: EngineSource) -> None:
        none = SimpleNamespace(environ={}, getenv=lambda _, default=None: default)
        self._world = World(source, {"os": none})

    def is_set(self, _: str) -> bool:
        """Return False, because no environment variable is set."""
        return False

    def __getattr__(self, name: str) -> Any:
        variables = self._world.space(self.path)["environment_variables"]
        if name not in variables:
            raise self._world.source.unread(
                f"{self.path}: {name}", "no environment variable has this name"
            )
        return variables[name]()


class QuantizationArgs(Given):
    """Stand-in for the quantization config of a compressed-tensors checkpoint."""


class _Other:
    """Stand-in for config classes of checkpoint types for which no rule is evaluated."""


def world_of(source: EngineSource, capability: float = 9.0, **more: Any) -> World:
    """Return a release's files with stand-ins for a GPU and the additional stand-ins ``more``."""
    text = Given(model_type="")
    config = Given(
        model_config=Given(quantization_config=None, hf_text_config=text),
        kernel_config=Given(moe_backend="auto"),
        parallel_config=Given(data_parallel_size=1),
    )
    stand_ins = {
        "current_platform": gpu(source, capability),
        "envs": Envs(source),
        "logger": Given(),
        "rocm_aiter_ops": Platform(),
        "get_current_vllm_config": lambda: config,
        "get_current_vllm_config_or_none": lambda: config,
        "is_torch_equal_or_newer": lambda _: True,
        # Mirrors ``cutlass_scaled_mm_supports_fp4`` of csrc.
        "cutlass_fp4_supported": lambda: capability >= 10.0,
        "vllm_is_batch_invariant": lambda: False,
        "QuantizationArgs": QuantizationArgs,
        **dict.fromkeys(("AutoAWQConfig", "AutoGPTQConfig", "MoeWNA16Config"), _Other),
        **dict.fromkeys(_INSTALLED, lambda *_: True),
        **dict.fromkeys(_ABSENT, lambda *_: False),
    }
    return World(source, stand_ins | more)
