"""The page to play with says what Python says, whoever uses it and however."""

import json
import re
import shlex
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest
from browser import CHROMIUM, Tab
from loop_oracle import Load, ends, served, step_s
from typer.testing import CliRunner

import pinn
from pinn.cli.main import app
from pinn.common.files import find_checkpoint
from pinn.engines.configurations import canonical, make_deployment
from pinn.errors import PinnError
from pinn.planning.explore.page import find_servers, render
from pinn.simulator.linear_latency import LinearLatency
from pinn.surrogate.surrogate import Surrogate
from pinn.surrogate.uncertainty.distance import gpu_is_known
from pinn.surrogate.uncertainty.intervals import read_calibration

CHECKPOINT = find_checkpoint(None)
#: A mixture of experts, a model with windows, a dense one.
MODELS = ("Qwen/Qwen3-30B-A3B", "openai/gpt-oss-120b", "meta-llama/Llama-3.1-8B")
LOADS = ((1, 1024, 256), (4, 20000, 256), (16, 1024, 256), (64, 4096, 512), (128, 256, 1024),
         (256, 1024, 256), (1, 8000, 64), (8, 8000, 64), (16, 8000, 64),
         (32, 8000, 64))  # fmt: skip
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium installed")


@pytest.fixture(scope="module")
def pages():
    return {
        model: find_servers({"model": model}, ["H100", "B200"], [1, 2, 8], [None], CHECKPOINT)
        for model in MODELS
    }


@pytest.fixture(scope="module")
def page(pages, tmp_path_factory):
    path = tmp_path_factory.mktemp("explore") / "explore.html"
    path.write_text(render(pages[MODELS[0]], "A <test> & its source."), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    found = Tab(tmp_path_factory.mktemp("browser"))
    yield found
    found.close()


def latency_of(model, server):
    named = {"model": model, "gpu": server["gpu"], "tensor_parallel_size": server["tp"]}
    deployment = make_deployment(canonical(named))
    found = Surrogate.load(CHECKPOINT).coefficients([deployment])
    return LinearLatency(deployment, found.beta[0], found.alpha[0])


@browser
def test_200_settings_are_equal_to_python(pages, tab, tmp_path):
    rng = np.random.default_rng(0)
    calibration, settings = read_calibration(CHECKPOINT), []
    for _ in range(200):
        model = MODELS[rng.integers(len(MODELS))]
        server = pages[model].found[rng.integers(len(pages[model].found))]
        drawn = np.exp(rng.uniform(np.log((1, 1, 1, 2)), np.log((1000, 60000, 40000, 4000))))
        load = Load(*(int(value) for value in drawn))
        settings.append((model, server, load))
    empty = tmp_path / "empty.html"
    source = (files("pinn.planning.explore") / name for name in ("step_formulas.js", "predict.js"))
    empty.write_text(f"<script>{''.join(each.read_text() for each in source)}</script>")
    tab.open(empty, 800)
    asked = json.dumps([[server, vars(load)] for _, server, load in settings])
    said = tab.value(
        f"JSON.stringify({asked}.map(([server, load]) => {{ const at = serve(server, load);"
        "const ends = serveInterval(server, load, at); const sums = batchSums(load.inFlight,"
        "load.context, [{count: 1, tokens: load.prompt, cached: load.context}], server.window);"
        "return [at, ends, stepParts(server, sums)]; }))"
    )
    for (model, server, load), (at, bounds, parts) in zip(settings, json.loads(said), strict=True):
        latency = latency_of(model, server)
        expected = served(latency, load)
        known = gpu_is_known(CHECKPOINT, latency.deployment)
        half = {metric: calibration.half_width(metric, known) for metric in ("tpot", "ttft")}
        around = ends(latency, load, expected, half)
        chunk = (1, load.prompt, load.context)
        whole = step_s(latency, load.inFlight, load.context, chunk)
        assert sum(parts.values()) == pytest.approx(whole, rel=1e-9)
        for name, value in expected.items():
            assert at[name] == pytest.approx(value, rel=1e-9), (model, server["gpu"], load, name)
            found = [bounds[end][name] for end in ("fast", "slow")]
            assert found == pytest.approx(around[name], rel=1e-9)
        assert at["perGpu"] * server["tp"] == pytest.approx(at["tokens"], rel=1e-12)


@pytest.mark.parametrize("load", LOADS)
def test_its_means_are_those_of_a_simulation(load):
    """Lengths between 0.7 and 1.3 times the load's; the page takes means of them all."""
    clients, prompt, output = load
    model = MODELS[0]
    run = pinn.simulate(
        model=model, gpu="H100", tensor_parallel_size=2, input_len=prompt, output_len=output,
        concurrency=clients, num_prompts=max(8 * clients, 64), range_ratio=0.3,
    ).run  # fmt: skip
    requests = run.requests
    middle = slice(clients, len(requests) - clients)
    first = (requests.first_token_s - requests.arrival_s)[middle]
    rest = (requests.finish_s - requests.first_token_s) / (requests.output_tokens - 1)
    expected = served(latency_of(model, {"gpu": "H100", "tp": 2}), Load(clients, 0, prompt, output))
    assert expected["tpot"] == pytest.approx(rest[middle].mean(), rel=0.05)
    assert expected["ttft"] == pytest.approx(first.mean(), rel=0.15)


class Tags(HTMLParser):
    """Addresses and tags left open."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.addresses += [v for k, v in attributes if k in ("src", "href", "srcset", "action")]
        if tag not in ("meta", "link", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_it_needs_no_other_file_and_escapes_what_it_is_told(pages, page):
    text = page.read_text(encoding="utf-8")
    tags = Tags(text)
    assert tags.open == []
    assert tags.addresses == ["data:,"]
    outside = set(re.findall(r"https?://[^\"'\s]+", text))
    assert outside == {"http://www.w3.org/2000/svg"}  # a name, which nothing asks for
    assert "A &lt;test&gt; &amp; its source." in text
    hostile = pages[MODELS[0]]
    odd = type(hostile)("</script><b>", {}, hostile.found, hostile.left_out)
    assert "</script><b>" not in render(odd, "")


@browser
@pytest.mark.parametrize("width", [390, 320, 1300])  # 320: a window of 1,280 at 400 %
def test_it_fits_any_width_without_a_word_of_complaint(page, tab, width):
    tab.errors.clear()
    tab.addresses.clear()
    tab.open(page, width)
    wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert tab.value(wider) <= 0
    tab.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert tab.value(wider) <= 0
    assert tab.value("document.querySelectorAll('svg[role=img]').length") == 4
    assert tab.errors == []
    assert set(tab.addresses) <= {page.as_uri(), "data:,"}


def tree(tab):
    """Role and name of what a screen reader finds."""
    nodes = tab.do("Accessibility.getFullAXTree")["nodes"]
    return [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    ]


@browser
def test_a_screen_reader_finds_every_control_and_what_curves_say(page, tab):
    tab.open(page, 1300)
    found = tree(tab)
    controls = [(role, name) for role, name in found
                if role in ("spinbutton", "slider", "checkbox", "combobox")]  # fmt: skip
    assert len(controls) == 2 + 2 + 4 + 4
    assert all(name for _, name in controls)
    pictures = [name for role, name in found if role in ("image", "img") and "load" in name]
    assert len(pictures) == 4
    assert re.search(
        r"Time per token against .*: H100-SXM [\d.]+ \([\d.]+ to [\d.]+\) ms", pictures[0]
    )
    tab.value("new Promise((done) => setTimeout(done, 700))")
    said = tab.value("document.getElementById('said').textContent")
    assert "H100-SXM:" in said
    assert "ms per token" in said


@browser
def test_keys_alone_move_everything(page, tab):
    tab.open(page, 1300)
    figures = "document.getElementById('figures').textContent"
    reached, before = [], tab.value(figures)
    for _ in range(40):
        tab.press("Tab", 9)
        at = tab.value("document.activeElement.id || document.activeElement.value || ''")
        reached.append(at)
        if at.endswith("-slider"):
            tab.press("ArrowRight", 39)
            after = tab.value(figures)
            assert after != before, at
            before = after
    fields = ("inFlight", "prompt", "output", "context")
    wanted = {"tp", "format", *fields, *(f"{name}-slider" for name in fields)}
    assert wanted <= set(reached)
    assert {"H100-SXM", "B200-SXM"} <= set(reached)


@browser
@pytest.mark.parametrize("text", ["", "-1", "1.5", "1e9", "0", "99999999999999999999"])
def test_what_cannot_be_is_said_and_nothing_is_lost(page, tab, text):
    tab.errors.clear()
    tab.open(page, 1300)
    before = tab.value("document.getElementById('figures').textContent")
    tab.value(
        f"{{ const at = document.getElementById('inFlight'); at.value = {text!r};"
        "at.dispatchEvent(new Event('input')); }"
    )
    assert "whole number from 1 to 4,096; shown is 32" in tab.value(
        "document.getElementById('inFlight-error').textContent"
    )
    assert tab.value("document.getElementById('figures').textContent") == before
    assert tab.errors == []


@browser
def test_a_load_that_does_not_fit_is_named(page, tab):
    tab.errors.clear()
    tab.open(page, 1300)
    tab.value(
        "{ const at = document.getElementById('context'); at.value = 900000;"
        "at.dispatchEvent(new Event('input')); }"
    )
    said = tab.value("document.getElementById('figures').textContent")
    assert "do not run at once: a request has 901,280 tokens, the engine takes 40,960" in said
    assert "Nothing runs at this load" in tab.value("document.getElementById('tpot').textContent")
    tab.value("document.querySelectorAll('#gpus input:checked').forEach((box) => box.click())")
    assert tab.errors == []


@browser
def test_the_command_that_it_shows_runs(page, tab):
    tab.open(page, 1300)
    words = shlex.split(tab.value("document.getElementById('command').textContent"))
    assert words[:2] == ["pinn", "simulate"]
    found = CliRunner().invoke(app, [*words[1:], "--num-prompts", "40"])
    assert found.exit_code == 0, found.output


def test_what_it_cannot_show_is_refused_with_the_way_out(tmp_path):
    out = ["--out", str(tmp_path / "e.html")]
    asked = ["explore", "--model", MODELS[2], "--gpu", "H100", *out]
    for more, said in (
        (["--engine", "sglang"], "engine sglang: use 'pinn simulate'"),
        (["--pipeline-parallel-size", "2"], "pipeline parallelism"),
        (["--tensor-parallel-size", "3"], "no server starts"),
        (["--tensor-parallel-size", "x"], "must be a whole number"),
        (["--gpu", ","], "--gpu names none"),
        (["--model", " "], "--model names none"),
        (["--gpu", "H9000"], "H9000"),
    ):
        found = CliRunner().invoke(app, [*asked, *more])
        assert found.exit_code != 0, more
        assert isinstance(found.exception, SystemExit | PinnError)
        assert said in found.output, found.output
    assert not (tmp_path / "e.html").exists()
