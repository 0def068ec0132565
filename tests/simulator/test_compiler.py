from __future__ import annotations

import numba
import pytest

from pinn.errors import PinnError
from pinn.simulator.compiler import compiled


def test_an_untested_release_of_numba_is_named(monkeypatch):
    monkeypatch.setattr(numba, "__version__", "0.69.0")
    with pytest.raises(PinnError, match=r"0\.69\.0"):
        compiled(lambda: 0)
