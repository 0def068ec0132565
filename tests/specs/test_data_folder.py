"""Which checkpoint is used when none is named."""

import pytest

from pinn.common.files import CHECKPOINT_VARIABLE, find_checkpoint
from pinn.errors import PinnError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CHECKPOINT_VARIABLE, raising=False)


def test_what_is_given_goes_first(tmp_path, monkeypatch):
    given, named = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    given.touch(), named.touch()
    monkeypatch.setenv(CHECKPOINT_VARIABLE, str(named))
    assert find_checkpoint(given) == given
    assert find_checkpoint() == named


def test_the_working_directory_goes_before_the_projects_own(tmp_path):
    own = find_checkpoint()
    assert own.is_absolute()
    assert own.parts[-2:] == ("checkpoints", "pinn.safetensors")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "pinn.safetensors").touch()
    assert find_checkpoint().resolve() == tmp_path / "checkpoints" / "pinn.safetensors"


def test_a_named_checkpoint_that_is_missing_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(PinnError, match=r"no checkpoint at .*none.*--checkpoint"):
        find_checkpoint(tmp_path / "none")
    monkeypatch.setenv(CHECKPOINT_VARIABLE, "nowhere.safetensors")
    with pytest.raises(PinnError, match=CHECKPOINT_VARIABLE):
        find_checkpoint()
