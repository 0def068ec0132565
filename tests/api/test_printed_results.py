"""Results of functions as a notebook shows, compares and saves them."""

import io
import pickle
from contextlib import redirect_stdout

import pytest
from rich.text import Text

import pinn
from pinn.common.screen import page

LLAMA = ("meta-llama/Llama-3.1-8B", "H100")
LOAD = {"prompt_tokens": 200, "output_tokens": 20, "concurrency": 4, "requests": 20}
RESULTS = {
    "simulate": lambda: pinn.simulate(LOAD, *LLAMA),
    "sweep": lambda: pinn.sweep([1, 2], None, *LLAMA, input_len=99, output_len=9, num_prompts=9),
    "fleet": lambda: pinn.simulate_fleet(LOAD, *LLAMA, fleet={"kinds": [{}]}),
    "pools": lambda: pinn.simulate_pools(LOAD, *LLAMA, prefill="1x", decode="1x"),
    "compare": lambda: pinn.compare(*[pinn.predict(*LLAMA)] * 2),
    "models": lambda: pinn.models("llama-3.1"),
    "gpus": lambda: pinn.gpus(),
}


@pytest.fixture(autouse=True)
def _small_network(monkeypatch, checkpoint_path):
    monkeypatch.setenv("PINN_CHECKPOINT", str(checkpoint_path))


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_shown_as_its_printed_text(name):
    found = RESULTS[name]()
    assert repr(found) == str(found).rstrip("\n")
    assert len(repr(found)) < 10_000
    assert not [line for line in str(found).splitlines() if line != line.rstrip()]
    copy = pickle.loads(pickle.dumps(found))
    assert str(copy) == str(found)
    assert (copy == found) in (True, False)
    assert found == found


def test_printed_lines_have_no_trailing_spaces():
    with redirect_stdout(io.StringIO()) as text:
        page(20).print("enable_prefix_caching True, engine vllm")
        page(20).print(Text("bold   ", style="bold"), end="|\n")
    assert text.getvalue() == "\n".join(
        ["enable_prefix_cachin", "g True, engine vllm", "bold   |", ""]
    )


def test_a_prediction_is_given_in_place_of_its_file(tmp_path):
    predicted = pinn.predict(*LLAMA, tp=2)
    predicted.save(tmp_path / "p.json")
    by_file = pinn.simulate(LOAD, coefficients=tmp_path / "p.json")
    found = pinn.simulate(LOAD, coefficients=predicted)
    assert found.metrics == by_file.metrics
    assert found.deployment == by_file.deployment
    with pytest.raises(pinn.PinnError, match="no intervals"):
        pinn.predict(coefficients=predicted).interval("8 decode @ 700")
    tables = [pinn.predict(coefficients=each).evidence for each in (predicted, tmp_path / "p.json")]
    assert tables[0].sentence == tables[1].sentence


def test_predictions_of_two_gpus_are_not_compared():
    one, other = pinn.predict(*LLAMA, max_num_seqs=64), pinn.predict(LLAMA[0], "H200")
    with pytest.raises(pinn.PinnError, match=r"gpu H200-SXM instead of .*pinn\.predict_many"):
        pinn.compare(one, other)
    text = str(pinn.compare(one, pinn.predict(*LLAMA, max_num_seqs=128)))
    titles = [text[text.index(f"{side}: ") :].split("\n")[0] for side in "AB"]
    assert titles[0].startswith(f"A: prediction of {LLAMA[0]} on H100-SXM, bf16")
    assert "--max-num-seqs 64" in text
    assert "--max-num-seqs 128" in text
    assert "no errors" not in text
    assert "\n\n\n" not in text


def test_help_without_arguments_has_no_empty_section():
    assert "Keyword Args" not in pinn.models.__doc__
    assert "Keyword Args" in pinn.predict.__doc__
