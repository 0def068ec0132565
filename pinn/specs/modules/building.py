"""Construction of a config.json's text model with transformers, on PyTorch's meta device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinn.common.documents import MOST_LAYERS, check_size
from pinn.errors import PinnError
from pinn.specs.config_fields import ConfigFields, read_fields

if TYPE_CHECKING:
    from torch import nn

#: Number of tokens in the forward pass on the meta device, which does not affect the result.
_TOKENS = 16
#: Configuration keys with which transformers would load third-party code, kernels or weights.
_UNSAFE = ("auto_map", "quantization_config", "compression_config", "use_pretrained_backbone")
_LAYERS = re.compile(r"(^|_)layers?$")


@dataclass(frozen=True)
class BuiltModel:
    """A text model on PyTorch's meta device, which has shapes but no weights.

    Attributes:
        module: The whole model as a PyTorch module, with its output head if it has one.
        fields: The model's configuration, completed with the defaults of its configuration class.
        calls: Number of calls of each module, by path, in one forward pass.
        version: Release of transformers that built the model.
    """

    module: nn.Module
    fields: ConfigFields
    calls: Mapping[str, int]
    version: str

    @property
    def title(self) -> str:
        """Return the model's class, and the release of transformers that built it, as text."""
        return f"{type(self.module).__name__} of transformers {self.version}"


def build_text_model(fields: ConfigFields) -> BuiltModel:
    """Build the language model of a config.json with transformers' own code, and run it once.

    Neither weights nor code from a model's folder are loaded.

    Raises:
        PinnError: If transformers is missing, does not know the model type, or cannot build or run
            the model.
    """
    try:
        import transformers
    except ImportError as error:
        remedy = "run 'pip install pinn-serving[models]'"
        fault = "reading layers requires transformers, which is not installed"
        raise PinnError(f"{fields.source}: {fault}: {remedy}") from error
    version = transformers.__version__
    known = transformers.CONFIG_MAPPING
    root_type = str(fields.root.get("model_type") or fields.model_type)
    if root_type not in known:
        raise PinnError(
            f"{fields.source}: transformers {version} does not know {root_type!r} either: install "
            "a newer release of transformers"
        )
    _check_layers(fields)
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        root = known[root_type].from_dict(_safe(fields.root))
        config = root.get_text_config(decoder=True)
        module = _text_module(config)
        calls = _calls(module)
    except Exception as error:  # a model's code may raise any error
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        fault = f"transformers {version} cannot build and run the model without weights"
        raise PinnError(f"{fields.source}: {fault} ({reason:.200})") from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    values = config.to_dict()
    return BuiltModel(module, read_fields(values, fields.source), calls, version)


def _safe(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without keys that load code, kernels or weights."""
    kept = {k: v for k, v in values.items() if k not in _UNSAFE and "implementation" not in str(k)}
    return {k: _safe(v) if isinstance(v, Mapping) else v for k, v in kept.items()}


def _check_layers(fields: ConfigFields) -> None:
    """Check that a model does not have more layers than transformers can build in a second."""
    for key, value in (*fields.root.items(), *fields.text.items()):
        if _LAYERS.search(key) and isinstance(value, int):
            check_size(value, MOST_LAYERS, f"{fields.source}: {key}", "correct the file")


def _text_module(config: Any) -> nn.Module:
    import torch
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    factory: Any = AutoModelForCausalLM if config.model_type in CAUSAL else AutoModel
    # All other implementations need the values of masks and routers, which do not exist on the meta
    # device.
    settings = {"attn_implementation": "eager", "experts_implementation": "batched_mm"}
    with torch.device("meta"):
        module: nn.Module = factory.from_config(
            config, trust_remote_code=False, dtype=torch.bfloat16, **settings
        )
    return module.eval()


def _calls(module: nn.Module) -> Counter[str]:
    """Count the calls of each module in one forward pass, which shows layers that run repeatedly.

    Tensors on the meta device have no values. Tests over all values, such as whether no token is
    masked, therefore return true. Searches for nonzero values, such as experts with tokens, find
    none.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class WithoutValues(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in (torch.Tensor.__bool__, torch.Tensor.item) and args[0].is_meta:
                return True
            if func in (torch.Tensor.nonzero, torch.nonzero) and args[0].is_meta:
                return torch.empty(0, args[0].dim(), dtype=torch.long)
            return func(*args, **(kwargs or {}))

    def counter(path: str) -> Callable[..., None]:
        return lambda *_: calls.update([path])

    calls: Counter[str] = Counter()
    for path, each in module.named_modules():
        each.register_forward_hook(counter(path))
    with torch.device("meta"), torch.no_grad(), WithoutValues():
        tokens = torch.zeros(1, _TOKENS, dtype=torch.long)
        module(tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    return calls
