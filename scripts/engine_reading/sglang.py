"""What SGLang does by default, by release: fields, and rules that its own functions answer.

Arguments live in ``server_args.py``, from 0.5.19 on in ``arg_groups``. What only reading can tell
is in ``sglang_models.py``.
"""

from __future__ import annotations

import ast
import copy
import re
from functools import partial
from types import SimpleNamespace
from typing import Any

from engine_reading.sglang_models import DIGESTS, check_read, model_types
from engine_reading.table import Line, default
from engine_reading.wheel import EngineSource, compiled, literal
from pinn.engines.recipe import release
from pinn.engines.vllm_sglang_trtllm import MemoryUsers, prompt_graph_sizes, reserve_mib

#: Every release that was read, oldest first.
RELEASES = tuple(DIGESTS)

#: Patterns of GPUs' names: compute capability 10.0 and 10.3, and 9.0.
SM100, SM90 = "b[23]00", "h[128]00|h20"

_SRT = "sglang/srt"
ARGS = f"{_SRT}/server_args.py"
_MEMORY = f"{_SRT}/arg_groups/memory_hook.py"
_FIELDS = tuple(
    f"{_SRT}/arg_groups/fields/{name}.py" for name in ("schedule", "exec_", "memory", "parallel")
)
_OVERRIDES = f"{_SRT}/arg_groups/overrides.py"
#: Memory in GiB that a GPU of each kind in the rules has.
_MEMORIES = (10, 24, 48, 80, 141, 192)


def requirement(version: str) -> str:
    """What pip is asked for."""
    return f"sglang=={version}"


def field(source: EngineSource, name: str) -> tuple[Any, str]:
    """The default of an argument, and where it stands."""
    for path in filter(source.exists, (ARGS, *_FIELDS)):
        for node in ast.walk(source.tree(path)):
            if not isinstance(node, ast.AnnAssign) or node.value is None:
                continue
            if ast.unparse(node.target) == name:
                return literal(node.value), f"{path}: {name}"
    raise source.unread(name, "no argument of that name has a default")


#: Arguments whose default no rule changes: flag, argument, and what its values are in the table.
_SINGLE: tuple[tuple[str, str, dict[Any, str] | None], ...] = (
    ("max_prefill_tokens", "max_prefill_tokens", None),
    ("enable_chunked_prefill", "chunked_prefill_size", {None: "yes"}),
    ("cudagraph_padding", "disable_cuda_graph_padding", {False: "yes", True: "no"}),
    ("scheduler_recv_interval", "scheduler_recv_interval", None),
)
#: What the recipe takes as given.
_EXPECTED = {
    "schedule_policy": "fcfs",
    "schedule_conservativeness": 1.0,
    "enable_mixed_chunk": False,
    "num_continuous_decode_steps": 1,
    "moe_a2a_backend": "none",
    "disable_radix_cache": False,
}


def single_fields(source: EngineSource) -> list[Line]:
    """Arguments whose default no rule changes."""
    lines = []
    for flag, name, said in _SINGLE:
        value, where = field(source, name)
        if said is not None and value not in said:
            raise source.unread(where, f"its default is {value!r}")
        lines.append(default(flag, said[value] if said else value, where))
    for name, expected in _EXPECTED.items():
        value, where = field(source, name)
        if value != expected:
            raise source.unread(where, f"its default is {value!r}, the recipe takes {expected!r}")
    return lines


def sampling(source: EngineSource) -> list[Line]:
    where = _OVERRIDES, "_sampling_backend_default"
    if not source.has(*where):
        where = ARGS, "ServerArgs._handle_sampling_backend"
    if "'flashinfer' if" not in ast.unparse(source.node(*where)):
        raise source.unread(": ".join(where), "it does not pick FlashInfer where it is installed")
    return [default("sampling_backend", "flashinfer", ": ".join(where))]


def requests(source: EngineSource) -> list[Line]:
    """Running requests: a share of the cached tokens within two limits; the lower one."""
    candidates = [
        f"{_SRT}/{name}.py"
        for name in (
            "mem_cache/kv_cache_configurator", "model_executor/pool_configurator",
            "model_executor/model_runner_kv_cache_mixin", "model_executor/model_runner",
        )
    ]  # fmt: skip
    either = r", 2048\), 4096\)|\n.*max\(min\(estimated, 4096\), 2048"
    rule = re.compile(rf"context_len \* 512\)({either})")
    for path in filter(source.exists, candidates):
        if rule.search(ast.unparse(source.tree(path))):
            what = "512 x cached tokens / context length within 2048 and 4096; the lower end"
            return [default("max_num_seqs", 2048, f"{path}: {what}")]
    raise source.unread("max_running_requests", "its rule stands nowhere")


def memory_rules(source: EngineSource) -> list[Line]:
    """Prompt tokens of a step and decodes of the largest graph, by memory and GPUs."""
    rule = _memory_function(source)
    where, said = ": ".join(rule), ast.unparse(source.node(*rule))
    bounds = sorted({int(found) for found in re.findall(r"gpu_mem < (\d+) \* 1024", said)})
    if bounds not in ([20, 35, 60, 90, 160], [20, 32, 35, 60, 64, 90, 160]):
        raise source.unread(where, f"it tells memory apart at {bounds} GiB")
    found = {(gib, tp): _settings(source, gib, tp_size=tp) for gib in _MEMORIES for tp in (1, 4)}
    chunks, few, many = (
        [getattr(found[gib, tp], name) for gib in _MEMORIES]
        for name, tp in (("chunk", 1), ("graphs", 1), ("graphs", 4))
    )
    if chunks != [found[gib, 4].chunk for gib in _MEMORIES]:
        raise source.unread(where, "prompt tokens depend on the GPUs of a replica")
    lines = [
        default("max_num_batched_tokens", value, where, below_gib=below)
        for below, value in _steps(chunks)
    ]
    for below, (of_one, of_four) in _steps([*zip(few, many, strict=True)]):
        graphs = partial(default, "max_cudagraph_capture_size", source=where, below_gib=below)
        lines += [graphs(of_one, below_tp=4)] if of_one != of_four else []
        lines.append(graphs(of_four))
    return lines


def _steps(values: list[Any]) -> list[tuple[int | None, Any]]:
    """Values with the memory below which each holds; of equal neighbours the last."""
    pairs = [*zip((20, 35, 60, 90, 160, None), values, strict=True)]
    return [p for p, after in zip(pairs, [*pairs[1:], (0, None)], strict=True) if p[1] != after[1]]


def _memory_function(source: EngineSource) -> tuple[str, str]:
    if source.exists(_MEMORY):
        return _MEMORY, "handle_gpu_memory_settings"
    return ARGS, "ServerArgs._handle_gpu_memory_settings"


_OFF, _BREAKABLE = "disabled", "breakable"
#: The first release that captures graphs of prompts unless told not to.
_PROMPT_GRAPHS_SINCE = (0, 5, 10)


def _settings(source: EngineSource, gib: float, **given: Any) -> SimpleNamespace:
    """What the release's own function makes of a GPU's memory and some arguments."""
    asked = {
        "tp_size": 1, "pp_size": 1, "dp_size": 1, "enable_dp_attention": False,
        "speculative_algorithm": None, "mla": False, "prompts": False, "a2a": "none",
    } | given  # fmt: skip
    phase = {"bs": None, "max_bs": None}
    server = SimpleNamespace(
        **{k: v for k, v in asked.items() if k not in ("mla", "prompts", "a2a")},
        attn_dp_size=asked["dp_size"], moe_a2a_backend=asked["a2a"], device="cuda",
        chunked_prefill_size=None, max_prefill_tokens=16384, mem_fraction_static=None,
        cuda_graph_max_bs=None, cuda_graph_bs=None, torch_compile_max_bs=None,
        piecewise_cuda_graph_max_tokens=4096, piecewise_cuda_graph_tokens=None,
        enable_piecewise_cuda_graph=asked["prompts"],
        disable_piecewise_cuda_graph=not asked["prompts"],
        max_total_tokens=None, max_running_requests=None, context_length=None, model_path="m",
        disaggregation_mode="null", language_only=True, language_model_only=True,
        enable_symm_mem=False, _cuda_graph_config_locked=set(),
        cuda_graph_config=SimpleNamespace(
            decode=SimpleNamespace(backend="full", **phase),
            prefill=SimpleNamespace(backend=_BREAKABLE if asked["prompts"] else _OFF, **phase),
        ),
    )  # fmt: skip
    names = _stand_ins(source, server, asked, gib * 1024)
    for method in ("reserve_for_graph_mb", "reserve_for_deepep_a2a_mb"):
        for place, symbol in ((ARGS, f"ServerArgs.{method}"), (_MEMORY, method)):
            if source.has(place, symbol):
                node = source.node(place, symbol)
                names[method] = lambda _, node=node: compiled(node, names)(server)
                setattr(server, method, lambda node=node: compiled(node, names)(server))
    function = source.node(*_memory_function(source))
    compiled(function, names)(*[server, gib * 1024][: len(function.args.args)])
    decode = server.cuda_graph_config.decode.max_bs
    return SimpleNamespace(
        chunk=server.chunked_prefill_size,
        graphs=decode if decode is not None else server.cuda_graph_max_bs,
        share=server.mem_fraction_static,
    )


def _stand_ins(
    source: EngineSource, server: Any, asked: dict[str, Any], memory_mib: float
) -> dict[str, Any]:
    """What the function asks of the engine around it."""
    model = SimpleNamespace(is_multimodal=False)

    def prompts(most: int) -> list[int]:
        return [*prompt_graph_sizes(most)]

    vars(server).update(
        _generate_piecewise_cuda_graph_tokens=lambda: prompts(
            server.piecewise_cuda_graph_max_tokens
        ),
        _generate_cuda_graph_batch_sizes=lambda: [server.cuda_graph_max_bs],
        _generate_decode_cuda_graph_batch_sizes=lambda most: [most],
        _generate_prefill_cuda_graph_batch_sizes=prompts,
        use_mla_backend=lambda: asked["mla"],
        post_capture_kv_sizing_planned=lambda: False,
        get_model_config=lambda: model,
        _resolved=lambda: server,
    )
    if release(source.version) >= (0, 5, 7):
        server.piecewise_cuda_graph_max_tokens = None
    return {
        **dict.fromkeys(("resolving_view", "resolved_view", "_resolved_view"), lambda s: s),
        "is_npu": lambda: False, "copy": copy,
        "declare_resolution": lambda s, _, **kept: vars(s).update(kept),
        "get_device_memory_capacity": lambda _: memory_mib,
        "Backend": SimpleNamespace(DISABLED=_OFF, BREAKABLE=_BREAKABLE),
        "Phase": SimpleNamespace(PREFILL="prefill"),
        "generate_decode_cuda_graph_batch_sizes": lambda _, most: [most],
        "generate_prefill_cuda_graph_batch_sizes": prompts,
        "use_mla_backend": lambda _: asked["mla"],
        "post_capture_kv_sizing_planned": lambda *_: False,
        "expand_multimodal_decode_graph_to_running_limit": lambda *_: None,
        "model_config_of": lambda _: model,
        "ModelConfig": SimpleNamespace(from_server_args=lambda _: model),
        "get_platform": lambda: SimpleNamespace(is_xpu=False),
        "adjust_mem_fraction_for_vlm": None,
        "attn_dp_enabled_of": lambda s: s.enable_dp_attention,
        "_DEFAULT_PP_PREFILL_CUDA_GRAPH_MAX_TOKENS": 8192,
        "envs": SimpleNamespace(),
    }  # fmt: skip


def memory_share(source: EngineSource) -> list[Line]:
    """No line: that the recipe's reserve is the release's own, for each kind of server."""
    number = release(source.version)
    for gib in (24, 80, 192):
        for given in (
            {}, {"tp_size": 8}, {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True},
            {"speculative_algorithm": "EAGLE"}, {"speculative_algorithm": "STANDALONE"},
            {"speculative_algorithm": "NGRAM"}, {"prompts": True}, {"prompts": True, "mla": True},
            {"tp_size": 8, "a2a": "deepep"}, {"tp_size": 8, "a2a": "deepep", "prompts": True},
        ):  # fmt: skip
            if given.get("prompts") and number < _PROMPT_GRAPHS_SINCE:
                continue
            found = _settings(source, gib, **given)
            users = MemoryUsers(
                chunk=found.chunk,
                graphs=found.graphs,
                gpus=given.get("tp_size", 1),
                replicas=given.get("dp_size", 0),
                prompt_graph_tokens=found.chunk if given.get("prompts") else 0,
                latent=given.get("mla", False),
                algorithm=given.get("speculative_algorithm", ""),
                deepep=given.get("a2a") == "deepep",
            )
            reserve = reserve_mib(number, gib * 1024.0, users)
            share = round((gib * 1024 - reserve) / (gib * 1024), 3)
            if share != found.share:
                where = ": ".join(_memory_function(source))
                raise source.unread(where, f"{found.share} of {gib} GiB for {given}, here {share}")
    return []


def fused_all_reduce(source: EngineSource) -> list[Line]:
    """Architectures whose all-reduce is fused with the norm after it, and on which GPUs."""
    where, architectures, said = _fusion_rule(source)
    if "enable_dp_attention" not in said and "attn_dp_enabled_of" not in said:
        raise source.unread(where, "attention data parallelism does not turn it off")
    # Of one node, which has 8 GPUs; H20 is left out until its bug was mended.
    one_node = "nnodes" in said and "nnodes == 1 or" not in said
    gpus = {SM100: 9 if one_node else None}
    if "sm90" in said:
        gpus = {"h[18]00|h200" if "is_h20_device" in said else SM90: 9} | gpus
    types = model_types(architectures)
    lines = [
        default("fuse_all_reduce", "yes", where, gpu=gpu, least_tp=2, below_tp=below, models=types)
        for gpu, below in gpus.items()
    ]
    return [*lines, default("fuse_all_reduce", "no", where)]


def _fusion_rule(source: EngineSource) -> tuple[str, list[str], str]:
    """Where it stands, the architectures, and all conditions as the source words them."""
    if source.has(_OVERRIDES, "_FLASHINFER_ALLREDUCE_FUSION_ARCHS"):
        name = "_flashinfer_allreduce_fusion_auto_enable"
        names = _constants(source.node(_OVERRIDES, "_FLASHINFER_ALLREDUCE_FUSION_ARCHS").value)
        return f"{_OVERRIDES}: {name}", names, ast.unparse(source.node(_OVERRIDES, name))
    where = ARGS, "ServerArgs._handle_model_specific_adjustments"
    names, conditions = [], []
    for chain in _branches(source.node(*where)):
        tests = [ast.unparse(each.test) for each in chain]
        if "dp_attention" in " ".join(tests) and any(map(_sets_fusion, chain[-1].body)):
            conditions += tests
            said = [name for each in chain for name in _constants(each.test)]
            names += [name for name in said if name.endswith(("ForCausalLM", "Generation"))]
    if not names:
        raise source.unread(": ".join(where), "it turns no fused all-reduce on")
    return ": ".join(where), names, " ".join(conditions)


def _constants(tree: ast.AST) -> list[str]:
    return [str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)]


def _sets_fusion(node: ast.stmt) -> bool:
    said = ast.unparse(node)
    return isinstance(node, ast.Assign) and said in (
        "self.enable_flashinfer_allreduce_fusion = True",
        "self.flashinfer_allreduce_fusion_backend = 'auto'",
    )


def _branches(node: ast.AST, above: tuple[ast.If, ...] = ()) -> list[tuple[ast.If, ...]]:
    """Every branch of a function with those it stands in; of an ``elif`` only its own."""
    found: list[tuple[ast.If, ...]] = []
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.If):
            chain = (*above, each)
            found.append(chain)
            found += _branches(ast.Module(each.body, []), chain)
            found += _branches(ast.Module(each.orelse, []), above)
        else:
            found += _branches(each, above)
    return found


READERS = (
    single_fields, sampling, requests, memory_rules, memory_share, fused_all_reduce, check_read,
)  # fmt: skip
KERNEL_READERS = ()
