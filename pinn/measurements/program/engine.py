"""vLLM engine in this process, which runs submitted requests and times the steps of the engine.

In a step, the engine core schedules one batch, runs it and processes the result. The time of a step
ends with the loop iteration that receives its result. The time begins with the iteration that
schedules the step, or at the end of the previous step, whichever is later. With asynchronous
scheduling, step times are therefore contiguous.

Sources, vLLM 0.15.0 to 0.33.0: vllm/v1/engine/core.py: EngineCore.step, step_with_batch_queue and
log_error_detail (entered right before the wait that the iteration log times), and
vllm/v1/core/sched/output.py: SchedulerOutput.
"""

import os
import time
from contextlib import suppress
from typing import Any

from pinn.measurements.program.batches import Limits
from pinn.measurements.program.table import MeasuringError, Step

#: Oldest and newest vLLM release whose source was checked. A newer release is also measured if its
#: engine has the required methods.
OLDEST, NEWEST = (0, 15), (0, 33)

#: Remedies, by text in an engine's error message.
_REMEDIES = {
    "out of memory": "the model does not fit: use more GPUs (-tp), fewer bits, or a smaller model",
    "No available memory for the cache": "there is no room for a KV cache: use more GPUs "
    "(-tp), fewer bits, or a higher --gpu-memory-utilization",
    "KV cache is needed": "use a smaller --max-model-len",
    "Free memory on device": "another process uses the GPU: stop this process, or lower "
    "--gpu-memory-utilization",
}


class VllmEngine:
    """vLLM engine whose loop this program runs one step at a time.

    Attributes:
        limits: Limits of the engine on requests, tokens and KV cache.
        facts: vLLM's release and the engine's resolved settings.
    """

    def __init__(self, arguments: list[str]) -> None:
        """Start the engine with the flags of ``vllm serve``.

        Raises:
            MeasuringError: If vLLM is missing, cannot be timed, or does not start.
        """
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        release = _release()
        try:
            from vllm import SamplingParams
            from vllm.engine.arg_utils import EngineArgs
            from vllm.usage.usage_lib import UsageContext
            from vllm.utils.argparse_utils import FlexibleArgumentParser
            from vllm.v1.engine.llm_engine import LLMEngine
        except ImportError as error:
            raise MeasuringError(
                f"vLLM {release} cannot be measured, because an import failed ({error}): use "
                f"vLLM {_dotted(OLDEST)} to {_dotted(NEWEST)}"
            ) from error
        given = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(arguments)
        try:
            # With the API server's usage context, max_num_seqs and max_num_batched_tokens have the
            # defaults of ``vllm serve``, which differ from those of offline inference.
            engine = LLMEngine.from_engine_args(
                EngineArgs.from_cli_args(given), usage_context=UsageContext.OPENAI_API_SERVER
            )
        except (Exception, SystemExit) as error:
            raise MeasuringError(f"vLLM's engine did not start: {_in_a_line(error)}") from error
        self._engine, self._sampling = engine, SamplingParams
        core: Any = getattr(engine.engine_core, "engine_core", None)
        self._core = core
        for name in ("step_fn", "post_step", "scheduler", "log_error_detail"):
            if not hasattr(self._core, name):
                raise MeasuringError(
                    f"vLLM {release} has no EngineCore.{name} in this process, so its steps cannot "
                    f"be timed: use vLLM {_dotted(OLDEST)} to {_dotted(NEWEST)}"
                )
        self._check(engine.vllm_config)
        layout = getattr(core.scheduler, "kv_cache_config", None)
        groups = len(getattr(layout, "kv_cache_groups", None) or [0])
        self.limits = _limits(engine.vllm_config, groups)
        self.facts = _facts(engine.vllm_config, release, self.limits)
        self._ids: list[str] = []
        self._submitted = 0
        self._scheduled: dict[int, tuple[float, Any]] = {}
        self._finished: list[tuple[float, Any]] = []
        self._waits, self._before = 0.0, 0.0
        self._watch()

    @staticmethod
    def clock() -> float:
        """Return the time of a monotonic clock, in seconds."""
        return time.perf_counter()

    def submit(self, prompt: list[int], outputs: int) -> str:
        """Submit a request by prompt token ids and number of output tokens; return its name."""
        name = f"measured-{self._submitted}"
        self._submitted += 1
        self._ids.append(name)
        greedy = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}
        sampling = self._sampling(max_tokens=outputs, **greedy)
        self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        return name

    def step(self) -> list[Step]:
        """Run one iteration of the engine's loop, and return the steps that it completed."""
        begin = self._begin = time.perf_counter()
        _, executed = self._core.step_fn()
        self._core.post_step(executed)
        end = time.perf_counter()
        found = []
        for logged, output in self._finished:
            start = max(self._scheduled.pop(id(output), (begin, None))[0], self._before)
            if output.total_num_scheduled_tokens:
                found.append(_step(output, start, end - start, logged))
                self._before = end
        self._finished.clear()
        return found

    def drop(self, names: list[str] | None = None) -> None:
        """Abort the named requests; without names, abort all and let running steps complete."""
        going = self._ids if names is None else names
        if going:
            self._engine.abort_request(going)
        gone = set(going)
        self._ids = [name for name in self._ids if name not in gone]
        if names is not None:
            return
        core = self._core
        while core.scheduler.has_requests() or getattr(core, "batch_queue", None):
            self.step()
        self._scheduled.clear()

    def close(self) -> None:
        """Stop the engine and free its GPU memory."""
        with suppress(Exception):
            self._engine.engine_core.shutdown()

    def _watch(self) -> None:
        """Make the engine record the times at which a step is scheduled, awaited and processed."""
        scheduler = self._core.scheduler
        schedule, update = scheduler.schedule, scheduler.update_from_output
        detail = self._core.log_error_detail

        def schedule_noted(*given: object, **named: object) -> object:
            output = schedule(*given, **named)
            # A reference to the output keeps it alive, so that no other object gets its id.
            self._scheduled[id(output)] = (self._begin, output)
            return output

        def update_noted(output: object, *given: object, **named: object) -> object:
            self._finished.append((time.perf_counter() - self._waits, output))
            return update(output, *given, **named)

        def detail_noted(*given: object, **named: object) -> object:
            self._waits = time.perf_counter()
            return detail(*given, **named)

        scheduler.schedule, scheduler.update_from_output = schedule_noted, update_noted
        self._core.log_error_detail = detail_noted

    @staticmethod
    def _check(config: Any) -> None:
        if getattr(config, "speculative_config", None) is not None:
            raise MeasuringError(
                "steps with speculative decoding cannot be measured: remove --speculative-config"
            )
        if config.parallel_config.data_parallel_size > 1:
            raise MeasuringError(
                "--data-parallel-size is above 1, but ranks wait for each other: measure one "
                "rank, without --data-parallel-size"
            )


def _release() -> str:
    """Return the release of the installed vLLM, such as ``0.15.1``.

    Raises:
        MeasuringError: If vLLM is missing or too old.
    """
    try:
        import vllm
    except ImportError as error:
        raise MeasuringError(
            f"vLLM is not installed in this Python ({error}): run the program "
            "with the Python of vLLM"
        ) from error
    release = str(getattr(vllm, "__version__", "unknown"))
    if (_numbers(release) or OLDEST) < OLDEST:
        raise MeasuringError(
            f"vLLM {release} is older than {_dotted(OLDEST)}, the oldest release that can be "
            "measured: install a newer release"
        )
    return release


def _numbers(release: str) -> tuple[int, ...]:
    """Return the first two numbers of a release; empty if it has no numbers."""
    parts = release.split(".")[:2]
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()


def _limits(config: Any, groups: int) -> Limits:
    scheduler, cache, model = config.scheduler_config, config.cache_config, config.model_config
    sizes = getattr(config.compilation_config, "cudagraph_capture_sizes", None) or []
    return Limits(
        max_num_seqs=int(scheduler.max_num_seqs),
        budget=int(scheduler.max_num_batched_tokens),
        longest=int(model.max_model_len),
        cache=int(cache.num_gpu_blocks or 0) // groups * int(cache.block_size),
        block=int(cache.block_size),
        shares=bool(cache.enable_prefix_caching),
        captured=0 if model.enforce_eager else int(max(sizes, default=0)),
        vocabulary=int(model.get_vocab_size()),
    )


def _facts(config: Any, release: str, limits: Limits) -> dict[str, object]:
    return {
        "engine": "vllm",
        "engine_version": release,
        "engine_is_newer_than_known": _numbers(release) > NEWEST,
        "async_scheduling": bool(getattr(config.scheduler_config, "async_scheduling", False)),
        "dtype": str(config.model_config.dtype),
        "quantization": config.model_config.quantization,
        "tensor_parallel_size": int(config.parallel_config.tensor_parallel_size),
        "kv_blocks": int(config.cache_config.num_gpu_blocks or 0),
        "limits": limits._asdict(),
        "resolved": str(config),
    }


def _step(output: Any, start: float, latency: float, logged: float) -> Step:
    """Return a completed step, with times in seconds and requests counted as in the iteration log.

    A request counts as a prompt until it has its first token (vllm/v1/utils.py:
    compute_iteration_details).
    """
    tokens = output.num_scheduled_tokens
    cached = output.scheduled_cached_reqs
    prompts = [(tokens[r.req_id], r.num_computed_tokens) for r in output.scheduled_new_reqs]
    contexts = []
    for name, computed, outputs in zip(
        cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
    ):
        if outputs == 0:
            prompts.append((tokens[name], computed))
        else:
            contexts.append(computed)
    new = [count for count, _ in prompts]
    return Step(
        start, latency, logged, len(prompts), sum(new), sum(c for _, c in prompts), _variance(new),
        len(contexts), sum(contexts), _variance(contexts), bool(cached.resumed_req_ids),
    )  # fmt: skip


def _variance(values: list[int]) -> float:
    count = len(values) or 1
    mean = sum(values) / count
    return sum(v * v for v in values) / count - mean * mean


def _in_a_line(error: BaseException) -> str:
    """Return an engine's error as one line of text, with a remedy if its cause is known."""
    texts: list[str] = []
    at: Any = error
    while at is not None and len(texts) < 5:
        texts.append(" ".join(str(at).split()) or type(at).__name__)
        at = at.__cause__ or at.__context__
    whole = " ".join(texts)
    remedy = next((r for words, r in _REMEDIES.items() if words.lower() in whole.lower()), "")
    return texts[0][:400] + (f" ({remedy})" if remedy else "")


def _dotted(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"
