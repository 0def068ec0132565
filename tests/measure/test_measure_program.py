"""The one file, its errors of one line, the engine that it turns, and the server that it loads."""

import ast
import json
import socket
import subprocess
import sys

import engine_stub
import pytest

from pinn.calibration.measuring import measuring_script
from pinn.measurements.program import MODULES, command, session, table
from pinn.measurements.program.engine import VllmEngine
from pinn.measurements.program.serving import serve_and_load
from pinn.measurements.program.table import MeasuringError, busy_card
from pinn.measurements.traces.measured_steps import FAR, STEPS_FILE, read_measured_steps
from pinn.measurements.traces.step_table import COUNTS, LATENCY


def test_the_file_needs_python_3_10_and_the_engine_alone():
    text = measuring_script(["--model", "m"], [("32 decode @ 1000", 0.125)])
    tree = ast.parse(text, feature_version=(3, 10))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    assert imported <= set(sys.stdlib_module_names) | {"vllm"}
    names: dict = {"__name__": "file"}
    exec(compile(text, "measure.py", "exec"), names)
    assert names["ARGUMENTS"] == ["--model", "m"]
    assert names["DESIGN"] == [("32 decode @ 1000", 0.125)]
    own = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert len(own) == len(set(own)), "two modules of one file have a name in common"
    assert len(MODULES) == 6


def test_reader_and_writer_share_their_columns_and_rules():
    assert {*COUNTS, LATENCY, "batch", "is_cold"} <= set(table.COLUMNS)
    assert session.FAR == FAR


def test_without_an_engine_it_says_so_in_a_line(tmp_path):
    file = tmp_path / "measure.py"
    file.write_text(measuring_script())
    words = [sys.executable, "-S", str(file), "--model", "m", "--out", str(tmp_path / "steps")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("measure: error: vLLM is not installed in this Python")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "steps" / STEPS_FILE).exists()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_steps_are_timed_and_counted(is_async, monkeypatch, tmp_path, capsys):
    engine_stub.install(monkeypatch, seconds=0.02, is_async=is_async)
    design = [("3 decode @ 40", 1.0), ("2 decode @ 40 + 1 prefill 30 @ 0", 1.0)]
    monkeypatch.setattr(command, "DESIGN", design)
    for name in ("short_list", "own_order"):
        monkeypatch.setattr(command, name, lambda _: [])
    monkeypatch.setattr(session, "KNOWN", 1.0)
    out = tmp_path / "steps"
    words = ["--model", "m", "--out", str(out), "--minutes", "1"]
    assert command.main(words) == 0
    assert "all batches are measured" in capsys.readouterr().out
    steps = read_measured_steps(out)
    assert steps.rows[list(COUNTS)[:4]].to_numpy().tolist() == [[0, 0, 0, 3], [1, 30, 0, 2]]
    assert steps.seconds == pytest.approx(0.02, rel=1e-3)
    facts = json.loads((out / table.FACTS_FILE).read_text())
    assert facts["flags"] == ["--load-format", "dummy"]
    assert (facts["engine_version"], facts["async_scheduling"]) == ("0.20.2", is_async)
    assert command.main(words) == 1
    assert "give another folder" in capsys.readouterr().err


def test_the_end_of_the_time_is_no_failure(monkeypatch, tmp_path, capsys):
    engine_stub.install(monkeypatch, seconds=0.02)
    out = str(tmp_path / "steps")
    assert command.main(["--model", "m", "--out", out, "--minutes", "0.05"]) == 0
    said = capsys.readouterr()
    assert "measure: the time of --minutes is over: " in said.out
    assert not said.err


def test_an_engine_that_fails_later_is_a_failure(monkeypatch, tmp_path, capsys):
    engine_stub.install(monkeypatch, seconds=0.02)
    steps = iter(range(40))
    step = VllmEngine.step
    monkeypatch.setattr(VllmEngine, "step", lambda engine: (next(steps), step(engine))[1])
    assert command.main(["--model", "m", "--out", str(tmp_path / "steps")]) == 1
    assert "earlier measurements are kept" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stub", "words"),
    [
        ({"release": "0.14.1"}, "vLLM 0.14.1 is older than 0.15"),
        ({"fails": "CUDA out of memory. Tried to"}, "the model does not fit"),
        ({"fails": "Free memory on device (1/80 GiB)"}, "another process uses the GPU"),
        ({"data_parallel_size": 2}, "without --data-parallel-size"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_line(stub, words, monkeypatch, tmp_path, capsys):
    engine_stub.install(monkeypatch, **stub)
    assert command.main(["--model", "m", "--out", str(tmp_path / "steps")]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_release_without_what_is_needed_is_named(monkeypatch):
    engine_stub.install(monkeypatch, release="0.40.0")
    monkeypatch.delattr(engine_stub.Core, "post_step")
    with pytest.raises(MeasuringError, match=r"vLLM 0\.40\.0 has no EngineCore\.post_step"):
        VllmEngine([])


def test_a_card_in_use_is_named(monkeypatch, tmp_path, capsys):
    card = {"name": "H100", "used_mib": 40000.0, "total_mib": 81559.0}
    assert "40000 of 81559 MiB" in busy_card([card])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert not busy_card([card])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(command, "machine_facts", lambda: {"cards": [card]})
    assert command.main(["--model", "m", "--out", str(tmp_path / "steps")]) == 1
    assert "--force" in capsys.readouterr().err


SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
words = sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
if words[0] == "serve":
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers()
            self.wfile.write(json.dumps({"data": [{"max_model_len": 2048}]}).encode())
        def log_message(self, *given): pass
    HTTPServer((value("--host"), int(value("--port"))), Answer).serve_forever()
with open(value("--result-dir") + "/" + value("--result-filename"), "w") as file:
    json.dump({"request_throughput": 5.0, "words": words}, file)
"""


def test_a_server_is_loaded_by_its_own_generator(tmp_path):
    said: list[str] = []
    program = (sys.executable, "-c", SERVER)
    files = serve_and_load("m", [], str(tmp_path), 60.0, said.append, program=program)
    assert [file.rsplit("/")[-1] for file in files] == ["closed_4.json", "closed_32.json",
                                                        "open.json"]  # fmt: skip
    words = json.loads((tmp_path / "serving" / "open.json").read_text())["words"]
    assert words[words.index("--request-rate") + 1] == "3"
    assert words[words.index("--random-input-len") + 1] == "512"
    assert len(said) == 3


def test_a_port_that_is_taken_and_a_server_that_fails_are_said_in_a_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(MeasuringError, match=r"port \d+ of 127\.0\.0\.1 is taken"):
            serve_and_load("m", [], str(tmp_path), 1.0, print, taken.getsockname()[1])
    failing = (sys.executable, "-c", "raise SystemExit('no room for weights')")
    with pytest.raises(MeasuringError, match=r"did not start \(no room for weights\): see .*log"):
        serve_and_load("m", [], str(tmp_path), 1.0, print, program=failing)


def test_steps_are_measured_though_the_server_failed(monkeypatch, tmp_path, capsys):
    engine_stub.install(monkeypatch, seconds=0.001)
    monkeypatch.setattr(command, "VLLM", (sys.executable, "-c", "raise SystemExit('no')"))
    monkeypatch.setattr(session, "KNOWN", 1.0)
    monkeypatch.setattr(command, "own_order", lambda _: [])
    assert command.main(["--model", "m", "--out", str(tmp_path / "steps"), "--serve"]) == 0
    assert "no serving was measured: the server did not start (no): see" in capsys.readouterr().out
    assert len(read_measured_steps(tmp_path / "steps"))
