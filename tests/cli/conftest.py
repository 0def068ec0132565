import pytest
from typer.testing import CliRunner

from pinn.cli.main import app


@pytest.fixture
def run(monkeypatch, checkpoint_path):
    """Run ``pinn`` with arguments; the checkpoint is a small one of the tests."""
    monkeypatch.setenv("PINN_CHECKPOINT", str(checkpoint_path))
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


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
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: ")
        return line

    return check
