"""A stand-in for the parts of vLLM that the program drives, whose model takes a known time."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import contextmanager
from types import ModuleType
from types import SimpleNamespace as Names


class Clock:
    """A clock on which nothing takes time but what sleeps."""

    def __init__(self):
        self._now = 0.0

    def perf_counter(self):
        self._now += 1e-7  # later at every look
        return self._now

    def sleep(self, seconds):
        self._now += seconds


class Scheduler:
    """Whole prompts, then a token of each request a step."""

    def __init__(self):
        self.waiting, self.running, self.ahead = {}, {}, 0

    def has_requests(self):
        return bool(self.waiting or self.running)

    def schedule(self):
        new = [Names(req_id=n, num_computed_tokens=0) for n in self.waiting]
        tokens = {n: prompt for n, (prompt, _) in self.waiting.items()}
        old = [n for n, r in self.running.items() if r[1] > 0]
        cached = Names(
            req_ids=old, resumed_req_ids=set(),
            num_computed_tokens=[self.running[n][0] for n in old],
            num_output_tokens=[self.running[n][2] for n in old],
        )  # fmt: skip
        for name in old:
            self.running[name] = (
                self.running[name][0] + 1, self.running[name][1] - 1, self.running[name][2] + 1
            )  # fmt: skip
        for name, (prompt, outputs) in self.waiting.items():
            self.running[name] = (prompt, outputs - 1, 1)
        self.waiting = {}
        tokens |= dict.fromkeys(old, 1)
        return Names(
            scheduled_new_reqs=new, scheduled_cached_reqs=cached, num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
        )  # fmt: skip

    def update_from_output(self, _output, _result):
        self.running = {n: r for n, r in self.running.items() if r[1] > 0}
        return {}


class Core:
    """Runs a batch at once, or with one more scheduled while it runs."""

    def __init__(self, clock, seconds, is_async):
        self.scheduler, self._clock, self._seconds = Scheduler(), clock, seconds
        self.batch_queue = deque() if is_async else None
        self.step_fn = self._queued if is_async else self._plain

    @contextmanager
    def log_error_detail(self, _output):
        yield

    def post_step(self, executed):
        pass

    def _plain(self):
        if not self.scheduler.has_requests():
            return {}, False
        output = self.scheduler.schedule()
        with self.log_error_detail(output):
            self._clock.sleep(self._seconds)
        return self.scheduler.update_from_output(output, None), True

    def _queued(self):
        if self.scheduler.has_requests():
            begun = self.batch_queue[0][1] if self.batch_queue else self._clock.perf_counter()
            self.batch_queue.appendleft((self.scheduler.schedule(), begun + self._seconds))
            if len(self.batch_queue) < 2:
                return None, True
        elif not self.batch_queue:
            return None, False
        output, end = self.batch_queue.pop()
        with self.log_error_detail(output):
            self._clock.sleep(max(end - self._clock.perf_counter(), 0.0))
        return self.scheduler.update_from_output(output, None), True


def install(monkeypatch, release="0.20.2", seconds=0.01, is_async=False, fails="", **parallel):
    """Put modules of this name where ``import`` finds them.

    Args:
        monkeypatch: The test's ``monkeypatch``.
        release: That it says it is.
        seconds: Seconds of every batch.
        is_async: Whether a batch is scheduled while another runs.
        fails: Error of its start.
        **parallel: Of its parallel configuration.
    """
    clock = Clock()
    monkeypatch.setattr("pinn.measurements.program.engine.time", clock)
    config = Names(
        scheduler_config=Names(max_num_seqs=64, max_num_batched_tokens=2048,
                               async_scheduling=is_async),
        cache_config=Names(num_gpu_blocks=1000, block_size=16, enable_prefix_caching=False),
        model_config=Names(max_model_len=4096, enforce_eager=True, dtype="bf16", quantization=None,
                           get_vocab_size=lambda: 1000),
        compilation_config=Names(cudagraph_capture_sizes=[]), speculative_config=None,
        parallel_config=Names(**{"tensor_parallel_size": 1, "data_parallel_size": 1} | parallel),
    )  # fmt: skip

    class Engine:
        def __init__(self):
            self.core, self.vllm_config = Core(clock, seconds, is_async), config
            self.engine_core = Names(engine_core=self.core, shutdown=lambda: None)

        @classmethod
        def from_engine_args(cls, _given, usage_context):
            assert usage_context == "server"
            if fails:
                raise RuntimeError(fails)
            return cls()

        def add_request(self, name, prompt, sampling):
            self.core.scheduler.waiting[name] = (
                len(prompt["prompt_token_ids"]), sampling.max_tokens
            )  # fmt: skip

        def abort_request(self, names):
            for name in names:
                self.core.scheduler.running.pop(name, None)
                self.core.scheduler.waiting.pop(name, None)

    class Arguments:
        add_cli_args = staticmethod(lambda parser: parser)
        from_cli_args = staticmethod(lambda given: given)

    parser = type("Parser", (), {"parse_args": lambda _, words: words})
    modules = {
        "vllm": {"__version__": release, "SamplingParams": Names},
        "vllm.engine": {}, "vllm.usage": {}, "vllm.utils": {}, "vllm.v1": {}, "vllm.v1.engine": {},
        "vllm.engine.arg_utils": {"EngineArgs": Arguments},
        "vllm.usage.usage_lib": {"UsageContext": Names(OPENAI_API_SERVER="server")},
        "vllm.utils.argparse_utils": {"FlexibleArgumentParser": parser},
        "vllm.v1.engine.llm_engine": {"LLMEngine": Engine},
    }  # fmt: skip
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
