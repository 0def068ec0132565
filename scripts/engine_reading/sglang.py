"""SGLang's defaults by release: defaults of arguments, and results of its own rules.

Arguments are declared in ``server_args.py``, from 0.5.19 on in ``arg_groups``. Rules that a person
has to read are checked in the module ``sglang_models``.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

from engine_reading.sandbox import Given, Symbol, World
from engine_reading.sglang_models import DIGESTS, check_read, model_types
from engine_reading.table import Line, default, runs
from engine_reading.wheel import EngineSource, literal
from pinn.engines.recipe import release
from pinn.engines.vllm_sglang_trtllm import MemoryUsers, reserve_mib

#: SGLang releases to read, oldest first.
RELEASES = tuple(DIGESTS)

#: Patterns of the names of GPUs with compute capability 10.0 or 10.3, and of those with 9.0.
SM100, SM90 = "b[23]00", "h[128]00|h20"

_SRT = "sglang/srt"
ARGS = f"{_SRT}/server_args.py"
_HANDLE_MEMORY = (
    f"{_SRT}/arg_groups/memory_hook.py: handle_gpu_memory_settings",
    f"{ARGS}: ServerArgs._handle_gpu_memory_settings",
)
_FIELDS = tuple(
    f"{_SRT}/arg_groups/fields/{name}.py"
    for name in ("schedule", "exec_", "memory", "parallel", "disagg")
)
_OVERRIDES = f"{_SRT}/arg_groups/overrides.py"
#: Memory sizes in GiB. ``_BELOW``: upper bounds of the ranges to which different rules apply.
#: ``_MEMORIES``: an example of a GPU's memory in each range.
_BELOW, _MEMORIES = (20, 35, 60, 90, 160, None), (10, 24, 48, 80, 141, 192)


def requirement(version: str) -> str:
    """Return the pip requirement that names a release."""
    return f"sglang=={version}"


def field(source: EngineSource, name: str) -> tuple[Any, str]:
    """Return the default of a server argument, and the place in the source that states it."""
    if name not in _fields(source):
        raise source.unread(name, "no server argument of this name has a default")
    value, path = _fields(source)[name]
    return literal(value), f"{path}: {name}"


@cache
def _fields(source: EngineSource) -> dict[str, tuple[ast.expr, str]]:
    """Return each argument's default, and the first file that states this default."""
    found: dict[str, tuple[ast.expr, str]] = {}
    for path in filter(source.exists, (ARGS, *_FIELDS)):
        for node in ast.walk(source.tree(path)):
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                found.setdefault(ast.unparse(node.target), (node.value, path))
    return found


#: Arguments whose default no rule changes: (flag in the table, argument of SGLang, values in the
#: table by value in the source).
_SINGLE: tuple[tuple[str, str, dict[Any, str] | None], ...] = (
    ("max_prefill_tokens", "max_prefill_tokens", None),
    ("enable_chunked_prefill", "chunked_prefill_size", {None: "yes"}),
    ("cudagraph_padding", "disable_cuda_graph_padding", {False: "yes", True: "no"}),
    ("scheduler_recv_interval", "scheduler_recv_interval", None),
)
#: Defaults that pinn assumes for every release, by SGLang setting.
_EXPECTED = {
    "schedule_policy": "fcfs",
    "schedule_conservativeness": 1.0,
    "enable_mixed_chunk": False,
    "num_continuous_decode_steps": 1,
    "moe_a2a_backend": "none",
    "disable_radix_cache": False,
}


def single_fields(source: EngineSource) -> list[Line]:
    """Return rows with the defaults of server arguments that no rule changes."""
    lines = []
    for flag, name, said in _SINGLE:
        value, where = field(source, name)
        if said is not None and value not in said:
            raise source.unread(where, f"the default is {value!r}, expected one of {said!r}")
        lines.append(default(flag, said[value] if said else value, where))
    for name, expected in _EXPECTED.items():
        value, where = field(source, name)
        if value != expected:
            raise source.unread(where, f"the default is {value!r}, expected {expected!r}")
    return lines


def sampling(source: EngineSource) -> list[Line]:
    place = source.first(
        f"{_OVERRIDES}: _sampling_backend_default", f"{ARGS}: ServerArgs._handle_sampling_backend"
    )
    if "'flashinfer' if" not in source.words(place):
        raise source.unread(place, "the function does not choose FlashInfer if it is installed")
    return [default("sampling_backend", "flashinfer", place)]


def requests(source: EngineSource) -> list[Line]:
    """Return rows with the maximum number of running requests: a bounded share of the KV tokens."""
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
    raise source.unread("max_running_requests", "no known file has the rule")


def memory_rules(source: EngineSource) -> list[Line]:
    """Return rows with prompt tokens per step and decodes in the largest CUDA graph, by memory."""
    rule = source.first(*_HANDLE_MEMORY)
    bounds = {int(found) for found in re.findall(r"gpu_mem < (\d+) \* 1024", source.words(rule))}
    if bounds - {32, 64} != (expected := {*_BELOW} - {None}):
        raise source.unread(
            rule, f"the memory bounds are {bounds} GiB, expected {expected} beside 32 and 64"
        )
    of_one, of_four = (
        [settings(source, gib, MemoryUsers(0, 0, gpus, 0)) for gib in _MEMORIES] for gpus in (1, 4)
    )
    if [one[0] for one in of_one] != [four[0] for four in of_four]:
        raise source.unread(
            rule, "prompt tokens depend on the number of GPUs of a replica, expected a constant"
        )
    lines = [
        default("max_num_batched_tokens", value, rule, below_gib=below)
        for below, value in _steps(one[0] for one in of_one)
    ]
    graphs = [(one[1], four[1]) for one, four in zip(of_one, of_four, strict=True)]
    for below, (few, many) in _steps(graphs):
        line = partial(default, "max_cudagraph_capture_size", source=rule, below_gib=below)
        lines += [*([line(few, below_tp=4)] if few != many else []), line(many)]
    return lines


def _steps(values: Iterable[Any]) -> list[tuple[int | None, Any]]:
    """Return pairs (upper bound of GPU memory in GiB, value that applies below it).

    Ranges of memory with the same value are merged.
    """
    starts = zip((0, *_BELOW), values, strict=False)
    return [(below, value) for _, below, value in runs(starts)]


class _Server(Given):
    """``ServerArgs`` with given values, and otherwise the release's own defaults and methods."""

    def __getattr__(self, name: str) -> Any:
        source, place = self.world.source, f"{ARGS}: ServerArgs.{name}"
        if name not in _fields(source) and source.has(place):
            return partial(self.world.rule(place), self)
        return field(source, name)[0]


def settings(source: EngineSource, gib: float, users: MemoryUsers) -> tuple[int, int, float]:
    """Return prompt tokens per step, decodes of the largest CUDA graph, and static memory share.

    The release's own function computes these values for the server that ``users`` describes; values
    that ``users`` does not set are chosen by the release.
    """
    prompts, mib = users.prompt_graph_tokens > 0, gib * 1024
    phase = {"bs": None, "max_bs": None}
    backend = Symbol("Backend")
    world = World(source, {
        **dict.fromkeys(("resolving_view", "resolved_view", "_resolved_view"), lambda s: s),
        "declare_resolution": lambda s, _, **kept: vars(s).update(kept),
        "get_device_memory_capacity": lambda _: mib,
        "Backend": backend,
        "is_npu": lambda: False,
        "use_mla_backend": lambda _: users.latent,
        "post_capture_kv_sizing_planned": lambda _: False,
        "expand_multimodal_decode_graph_to_running_limit": lambda *_: None,
        "model_config_of": lambda _: Given(),
        "ModelConfig": Given(from_server_args=lambda _: Given()),
        "get_platform": Given,
        "attn_dp_enabled_of": lambda s: s.enable_dp_attention,
    })  # fmt: skip
    server = _Server(
        world=world, tp_size=users.gpus, dp_size=users.replicas or 1, attn_dp_size=users.replicas,
        enable_dp_attention=users.replicas > 0, speculative_algorithm=users.algorithm or None,
        moe_a2a_backend="deepep" if users.deepep else "none", device="cuda", model_path="m",
        enable_piecewise_cuda_graph=prompts, disable_piecewise_cuda_graph=not prompts,
        use_mla_backend=lambda: users.latent, post_capture_kv_sizing_planned=lambda: False,
        get_model_config=Given, _cuda_graph_config_locked=set(),
        cuda_graph_config=Given(
            decode=Given(backend=backend.FULL, **phase),
            prefill=Given(backend=backend.BREAKABLE if prompts else backend.DISABLED, **phase),
        ),
    )  # fmt: skip
    rule = source.first(*_HANDLE_MEMORY)
    world.ask(rule, *[server, mib][: len(source.node(rule).args.args)])
    graphs = server.cuda_graph_config.decode.max_bs or server.cuda_graph_max_bs
    return server.chunked_prefill_size, graphs, server.mem_fraction_static


#: First release that by default captures CUDA graphs of prompts.
PROMPT_GRAPHS_SINCE = (0, 5, 10)
#: Types of servers for which memory rules are compared, with their settings. If a number of tokens
#: or requests is 0 or 1, the release chooses the value itself.
SERVERS = (
    MemoryUsers(0, 0, 1, 0), MemoryUsers(0, 0, 8, 0), MemoryUsers(0, 0, 8, 8),
    *(MemoryUsers(0, 0, 1, 0, algorithm=name) for name in ("EAGLE", "STANDALONE", "NGRAM")),
    MemoryUsers(0, 0, 1, 0, 1), MemoryUsers(0, 0, 1, 0, 1, latent=True),
    MemoryUsers(0, 0, 8, 0, deepep=True), MemoryUsers(0, 0, 8, 0, 1, deepep=True),
)  # fmt: skip


def memory_share(source: EngineSource) -> list[Line]:
    """Check that pinn reserves as much GPU memory as the release does.

    It raises an error if not, and returns no rows.
    """
    number = release(source.version)
    for gib, users in product((24, 80, 192), SERVERS):
        if users.prompt_graph_tokens and number < PROMPT_GRAPHS_SINCE:
            continue
        chunk, graphs, found = settings(source, gib, users)
        asked = replace(
            users, chunk=chunk, graphs=graphs, prompt_graph_tokens=chunk * users.prompt_graph_tokens
        )
        reserve = reserve_mib(number, gib * 1024.0, asked)
        share = round((gib * 1024 - reserve) / (gib * 1024), 3)
        if share != found:
            rule = source.first(*_HANDLE_MEMORY)
            raise source.unread(
                rule, f"the memory share at {gib} GiB is {found} for {asked}, expected {share}"
            )
    return []


def fused_all_reduce(source: EngineSource) -> list[Line]:
    """Return rows with architectures whose all-reduce is fused with the next norm, by GPU."""
    where, architectures, said = _fusion_rule(source)
    if "enable_dp_attention" not in said and "attn_dp_enabled_of" not in said:
        raise source.unread(where, "attention data parallelism does not turn the fusion off")
    # A condition on a single node limits the rule to 8 GPUs. Some releases exclude the H20 because
    # of a bug on this GPU.
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
    """Return SGLang's rule on fused all-reduce: its place, architectures and conditions."""
    if source.has(listed := f"{_OVERRIDES}: _FLASHINFER_ALLREDUCE_FUSION_ARCHS"):
        place = f"{_OVERRIDES}: _flashinfer_allreduce_fusion_auto_enable"
        return place, _constants(source.value(listed)), source.words(place)
    place = f"{ARGS}: ServerArgs._handle_model_specific_adjustments"
    names, conditions = [], []
    for chain in _branches(source.node(place)):
        tests = [ast.unparse(each.test) for each in chain]
        if "dp_attention" in " ".join(tests) and any(map(_sets_fusion, chain[-1].body)):
            conditions += tests
            said = [name for each in chain for name in _constants(each.test)]
            names += [name for name in said if name.endswith(("ForCausalLM", "Generation"))]
    if not names:
        raise source.unread(place, "the rule turns the fused all-reduce on for no architecture")
    return place, names, " ".join(conditions)


def _constants(tree: ast.AST) -> list[str]:
    return [str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)]


def _sets_fusion(node: ast.stmt) -> bool:
    said = ast.unparse(node)
    return isinstance(node, ast.Assign) and said in (
        "self.enable_flashinfer_allreduce_fusion = True",
        "self.flashinfer_allreduce_fusion_backend = 'auto'",
    )


def _branches(node: ast.AST, above: tuple[ast.If, ...] = ()) -> list[tuple[ast.If, ...]]:
    """Return all ``if`` branches in a syntax tree, each after the branches that enclose it.

    An ``elif`` does not count as enclosed by its ``if``.
    """
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
