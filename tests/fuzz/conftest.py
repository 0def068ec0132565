import json

import pytest
from browser import CHROMIUM, Tab
from export.onnx_sessions import onnx_sessions
from fuzz.hostile_values import written
from fuzz.page_targets import write_page
from fuzz.target import Fuzzed
from fuzz.targets import PLAIN, TARGETS

from pinn.specs import model_names as hub


@pytest.fixture
def file(tmp_path):
    """Write a file and get its path."""

    def write(name, content):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


@pytest.fixture(scope="session")
def fuzzed(measured, checkpoint_path, tmp_path_factory):
    """Return the shared inputs of targets: a small network, a deployment and its graphs."""
    folder = tmp_path_factory.mktemp("fuzz")
    surrogate, deployments = measured
    graph = onnx_sessions(surrogate.checkpoint, folder / "onnx")[0]
    shared = Fuzzed(folder, surrogate, checkpoint_path, deployments[0], graph)
    TARGETS["workloads"].check(shared, (".yaml", written(PLAIN)))  # compiles the simulator
    if CHROMIUM is not None:
        shared.tab = Tab(folder)
        shared.tab.open(write_page(shared), 800)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hub, "hub_is_reachable", lambda: False)  # names made up here stay here
        yield shared
    if shared.tab is not None:
        shared.tab.close()


def pytest_terminal_summary(terminalreporter):
    """How many inputs of each kind were tried."""
    reports = [r for found in terminalreporter.stats.values() for r in found]
    calls = [r for r in reports if getattr(r, "when", "") == "call"]
    tried = [v for r in calls for n, v in r.user_properties if n == "tried"]
    for name, accepted, refused in sorted(tried):
        terminalreporter.write_line(f"{name}: {accepted:,} accepted, {refused:,} refused")
    accepted, refused = (sum(entry[i] for entry in tried) for i in (1, 2))
    if tried:
        line = f"{accepted + refused:,} inputs: {accepted:,} accepted, {refused:,} refused"
        terminalreporter.write_line(line)
