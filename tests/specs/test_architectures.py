"""Parameter counts against every decoder of ``transformers``."""

import check_architectures
import pytest
from check_architectures import CAUSAL, MULTIMODAL, OFF_MODULES, READ, WRONG, Result, smaller


@pytest.fixture(scope="module")
def results() -> list[Result]:
    reason = "transformers is not installed: scripts/check_architectures.py needs it"
    pytest.importorskip("transformers", minversion="5.24", reason=reason)
    return check_architectures.check(quick=True)


def test_no_count_is_wrong(results):
    assert [result for result in results if result.status == WRONG] == []


@pytest.mark.parametrize(("kind", "least"), [(CAUSAL, 108), (MULTIMODAL, 42)])
def test_most_decoders_are_read(results, kind, least):
    assert sum(result[:3:2] == (kind, READ) for result in results) >= least


def test_some_that_their_keys_do_not_tell_are_read_off_modules(results):
    found = {result.model_type for result in results if result.status == OFF_MODULES}
    assert "dbrx" in found


def test_a_smaller_configuration_has_lists_of_its_own_length():
    config = {"num_hidden_layers": 12, "layer_types": ["full_attention"] * 12, "vocab_size": 32000}
    small = smaller(config | {"pad_token_id": 31999, "eos_token_id": None})
    assert (small["num_hidden_layers"], len(small["layer_types"]), small["vocab_size"]) == (
        8,
        8,
        1024,
    )
    assert (small["pad_token_id"], small["eos_token_id"]) == (0, None)
    nested = smaller({"model_type": "outer", "text_config": config})
    assert nested["text_config"]["num_hidden_layers"] == 8
    assert config["num_hidden_layers"] == 12


def test_a_wrong_count_fails_the_script(monkeypatch, capsys):
    found = [Result(CAUSAL, "right", READ, "+0.00 %"), Result(CAUSAL, "off", WRONG, "+2.00 %")]
    monkeypatch.setattr(check_architectures, "check", lambda: found)
    monkeypatch.setattr("sys.argv", ["check_architectures.py"])
    assert check_architectures.main() == 1
    shown = capsys.readouterr().out
    assert "causal: 1 of 2 wrong\n  off: +2.00 %" in shown
    assert "right" not in shown
