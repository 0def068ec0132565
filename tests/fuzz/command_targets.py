"""Whole commands, run in this process as they are typed."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from fuzz.hostile_values import VALUES
from fuzz.target import Fuzzed
from hypothesis import strategies as st

from pinn.errors import PinnError

MODELS = ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "gpt-oss-20b"]
GPUS = ["H100", "RTX-4090", "L40S"]
_BATCHES = ["4 decode @ 9", "1 prefill 512 @ 0 + 2 decode @ 700", "2000 decode @ 5"]
_LOAD_FLAGS = ("--input-len", "--random-output-len", "--concurrency", "--num-prompts")
_LOAD = {"prompt_tokens": 64, "output_tokens": 4, "stages": [{"rate": 8, "duration": 2}]}


def mostly(usual: list[str]) -> st.SearchStrategy[str]:
    """Usual values, and hostile ones as a shell can pass them."""
    hostile = VALUES.map(lambda v: str(v).replace("\0", "0").encode("utf-8", "replace").decode())
    return st.one_of(*[st.sampled_from(usual)] * 5, hostile)


def commands(_: Fuzzed) -> st.SearchStrategy[list[str]]:
    """Arguments of a command that writes JSON, but for those of its files."""
    from pinn.specs.flags import flags_of
    from pinn.specs.serving import ServingSpec

    usual = {"int": ["1", "2", "4", "64", "2048"], "float": ["0.5", "0.9", "2"]}
    flag = st.one_of(
        *(
            st.tuples(st.just(f.option), mostly(list(f.allowed) or usual.get(f.kind, ["auto"])))
            for f in flags_of(ServingSpec)
            if f.kind != "bool"
        )
    )
    flags = st.lists(flag, max_size=2).map(lambda pairs: [part for pair in pairs for part in pair])
    model = mostly(MODELS).flatmap(
        lambda name: st.sampled_from([["--model", name], ["--serve", f"vllm serve {name} -tp 2"]])
    )
    gpu = mostly(GPUS).map(lambda name: ["--gpu", name])
    batch = mostly(_BATCHES).map(lambda text: ["--batch", text])
    seed = mostly(["0", "7"]).map(lambda text: ["--workload", "LOAD", "--seed", text])
    length = mostly(["64", "5"])
    load = st.builds(
        lambda *texts: [word for pair in zip(_LOAD_FLAGS, texts, strict=True) for word in pair],
        length, length, mostly(["4"]), st.sampled_from(["12", "30"]),
    )  # fmt: skip
    kind = st.one_of(
        st.tuples(st.just(["coefficients"]), batch),
        st.tuples(st.just(["simulate"]), st.one_of(seed, load)),
    )
    return st.tuples(kind, model, gpu, flags).map(
        lambda parts: [*parts[0][0], *parts[0][1], *parts[1], *parts[2], *parts[3]]
    )


def check_command(shared: Fuzzed, arguments: list[str]) -> None:
    """A command ends in one line or in a whole file, and leaves nothing else behind."""
    from pinn.cli.main import app

    folder = shared.folder / "out"
    folder.mkdir(exist_ok=True)
    out = folder / "found.json"
    out.unlink(missing_ok=True)
    load = str(shared.file("small_load.yaml", json.dumps(_LOAD).encode()))
    given: list[Any] = [load if word == "LOAD" else word for word in arguments]
    stdout, stderr = io.StringIO(), io.StringIO()
    code: Any = None
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            app([*given, "--checkpoint", str(shared.checkpoint), "--json", str(out)])
    except SystemExit as end:
        code = end.code
    errors = [line for line in stderr.getvalue().splitlines() if line.startswith("error: ")]
    assert code in (0, 1, 2)
    assert stderr.getvalue().replace("\n", "").isprintable()
    assert len(errors) == (code != 0)
    assert [path.name for path in folder.iterdir()] == (["found.json"] if code == 0 else [])
    if code == 0:
        json.loads(out.read_text())
    else:
        raise PinnError(errors[0])
