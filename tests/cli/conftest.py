import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pinn.cli.main import app


def said(result):
    """Lines on standard error, without those that a busy machine adds about how long it takes."""
    return [line for line in result.stderr.splitlines() if not line.endswith(" s so far")]


@pytest.fixture
def run(monkeypatch, checkpoint_path):
    """Run ``pinn`` with arguments; the checkpoint is a small one of the tests."""
    monkeypatch.setenv("PINN_CHECKPOINT", str(checkpoint_path))
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def imported(run):  # noqa: ARG001  it names the checkpoint
    """Run ``pinn`` in a process of its own and get the libraries that it has imported."""
    code = (
        "import sys; from pinn.cli.main import app; app(standalone_mode=False); "
        "print(*sys.modules, file=sys.stderr)"
    )

    def check(*arguments):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return {name for name in result.stderr.split() if "." not in name}

    return check


@pytest.fixture(scope="session")
def kernels_folder(h100_kernels, tmp_path_factory):
    """Quickly fitted kernel surrogates on disk."""
    folder = tmp_path_factory.mktemp("kernels") / "all"
    h100_kernels.save(folder)
    return folder


@pytest.fixture
def refused(run):
    """Run ``pinn`` and get the one line that says what was wrong."""

    def check(*arguments):
        result = run(*arguments)
        assert result.exit_code in (1, 2), result.output
        assert result.stdout == ""
        (line,) = said(result)
        assert line.startswith("error: ")
        return line

    return check
