"""The explore page shows the results of the command that it prints, and is accessible."""

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest
from browser import CHROMIUM, Tab
from scipy.interpolate import PchipInterpolator
from typer.testing import CliRunner

import pinn
from pinn.cli.main import app
from pinn.common.files import find_checkpoint
from pinn.errors import PinnError
from pinn.planning.explore.grid import REQUESTS_PER_CLIENT, Stops
from pinn.planning.explore.page import explore_page
from pinn.surrogate.uncertainty.intervals import read_calibration

#: Names of a mixture of experts and of a dense model.
MODELS = ("Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-8B")
FEW = Stops((1024, 4096), (64, 256, 512), (0, 4096), 64)
#: Model, GPU and tensor-parallel size: dense, mixture of experts, several GPUs.
SERVERS = (("meta-llama/Llama-3.1-8B", "H100", 1), ("Qwen/Qwen3-30B-A3B", "B200", 1),
           ("meta-llama/Llama-3.1-70B", "H200", 4))  # fmt: skip
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium installed")
NODE = shutil.which("node")
SCRIPT = files("pinn.planning.explore") / "interpolate.js"


@pytest.fixture(scope="module")
def explored():
    flags = {"tensor_parallel_size": [1, 2], "precision": [None]}
    return explore_page(MODELS[0], ["H100", "B200"], flags, stops=FEW)


@pytest.fixture(scope="module")
def page(explored, tmp_path_factory):
    path = tmp_path_factory.mktemp("explore") / "explore.html"
    replace(explored, source="A <test> & its source.").write(path)
    return path


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    if CHROMIUM is None:
        yield None
        return
    found = Tab(tmp_path_factory.mktemp("browser"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def javascript(tab, tmp_path_factory):
    """Return a function that evaluates an expression after the page's interpolation.

    It runs in node, or else in Chromium.
    """
    if NODE is None and tab is None:
        pytest.skip("neither node nor Chromium installed")
    source = SCRIPT.read_text(encoding="utf-8")

    def evaluate(expression):
        if NODE is not None:
            text = f"{source};console.log(JSON.stringify({expression}))"
            found = subprocess.run(
                [NODE, "-"], input=text, text=True, capture_output=True, check=True
            )
            return json.loads(found.stdout)
        empty = tmp_path_factory.mktemp("script") / "empty.html"
        empty.write_text(f"<script>{source}</script>")
        tab.open(empty, 800)
        return json.loads(tab.value(f"JSON.stringify({expression})"))

    return evaluate


def test_interpolation_is_a_monotone_cubic_in_logarithms(javascript):
    rng = np.random.default_rng(0)
    for _ in range(20):
        clients = np.unique(rng.integers(1, 600, rng.integers(2, 9)))
        values = np.exp(rng.normal(size=len(clients)))
        at = rng.integers(clients[0], clients[-1] + 1, 10)
        found = javascript(f"{at.tolist()}.map((at) => interpolate({clients.tolist()},"
                           f"{values.tolist()}, at))")  # fmt: skip
        expected = np.exp(PchipInterpolator(np.log(clients), np.log(values))(np.log(at)))
        assert found == pytest.approx(expected, rel=1e-9)


def random_loads(server, count, rng):
    """Return positions of the sliders between the simulated numbers of clients."""
    found = []
    while len(found) < count:
        column = server["columns"][rng.integers(len(server["columns"]))]
        clients = round(np.exp(rng.uniform(0, np.log(column["most"]))))
        if clients not in column["clients"]:
            found.append({name: column[name] for name in ("prompt", "output", "context")}
                         | {"inFlight": clients})  # fmt: skip
    return found


@pytest.mark.parametrize(("model", "gpu", "size"), SERVERS)
def test_between_simulations_it_shows_what_simulate_gives(javascript, model, gpu, size):
    stops = Stops((512, 4096), (64, 256), (0, 4096), 256)
    flags = {"tensor_parallel_size": [size], "precision": [None]}
    explored = explore_page(model, [gpu], flags, stops=stops)
    (server,) = explored.data()["servers"]
    loads = random_loads(server, 20, np.random.default_rng(1))
    at_load = f"[serve(server, load), requestsOf(server, load, {REQUESTS_PER_CLIENT})]"
    found = javascript(
        f"((server) => {json.dumps(loads)}.map((load) => {at_load}))({json.dumps(server)})"
    )
    for load, (shown, requests) in zip(loads, found, strict=True):
        figures = pinn.simulate(
            model=model, gpu=gpu, tensor_parallel_size=size, input_len=load["prompt"],
            output_len=load["output"], prefix_len=load["context"], concurrency=load["inFlight"],
            num_prompts=requests, range_ratio=0.3,
        ).figures  # fmt: skip
        assert 1e3 * shown["ttft"] == pytest.approx(figures["ttft_mean_ms"], rel=0.1), load
        assert 1e3 * shown["tpot"] == pytest.approx(figures["itl_mean_ms"], rel=0.05), load
        assert shown["tokens"] == pytest.approx(figures["tokens_per_sec"], rel=0.05), load
        assert shown["perGpu"] * size == pytest.approx(shown["tokens"])


def test_nodes_are_the_command_s_figures(explored, javascript):
    """Simulated numbers of clients need no interpolation; intervals are the command's."""
    server, grid = explored.servers[0], explored.grids[0]
    column = next(each for each in grid if each.lengths.prefix)
    clients = sorted(column.nodes)[2]
    node = column.nodes[clients]
    figures = pinn.simulate(
        model=MODELS[0], gpu=server.asked.gpu, tensor_parallel_size=server.asked.tp,
        **column.lengths.load(clients).given,
    ).figures  # fmt: skip
    assert 1e3 * node.ttft_s == pytest.approx(figures["ttft_mean_ms"], rel=1e-9)
    assert 1e3 * node.itl_s == pytest.approx(figures["itl_mean_ms"], rel=1e-9)
    assert node.tokens_per_s == pytest.approx(figures["tokens_per_sec"], rel=1e-9)
    parts = [sum(node.decode_parts_s), sum(node.mixed_parts_s)]
    assert parts[0] < figures["step_mean_ms"] / 1e3 < parts[1]
    half = read_calibration(find_checkpoint(None)).half_width(
        "tpot", server.latency.deployment, gpu_known=True
    )
    load = {"inFlight": clients, "prompt": column.lengths.prompt, "output": column.lengths.output,
            "context": column.lengths.prefix}  # fmt: skip
    data = json.dumps(explored.data()["servers"][0])
    ends = javascript(f"((server, load) => serveInterval(server, serve(server, load)))"
                      f"({data}, {json.dumps(load)})")  # fmt: skip
    assert ends["slow"]["tpot"] == pytest.approx(node.itl_s * np.exp(half), rel=1e-3)
    low, high = figures["intervals"]["figures"]["itl_mean_ms"]
    assert 1e3 * ends["fast"]["tpot"] == pytest.approx(low, rel=0.05)
    assert 1e3 * ends["slow"]["tpot"] == pytest.approx(high, rel=0.05)
    low, high = figures["intervals"]["figures"]["tokens_per_sec"]
    assert ends["slow"]["tokens"] == pytest.approx(low, rel=0.05)
    assert ends["fast"]["tokens"] == pytest.approx(high, rel=0.05)


class Tags(HTMLParser):
    """Parser of addresses and of tags left open."""

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


def test_it_needs_no_other_file_and_escapes_what_it_is_told(explored, page):
    text = page.read_text(encoding="utf-8")
    tags = Tags(text)
    assert tags.open == []
    assert tags.addresses == ["data:,"]
    outside = set(re.findall(r"https?://[^\"'\s]+", text))
    assert outside == {"http://www.w3.org/2000/svg"}  # a name, not an address that is loaded
    assert "A &lt;test&gt; &amp; its source." in text
    odd = replace(explored, model="</script><b>")
    assert "</script><b>" not in odd.render()


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
    """Return role and name of the elements that a screen reader finds."""
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
    assert len(controls) == 2 + 2 + 1 + 4
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
    for _ in range(30):
        tab.press("Tab", 9)
        at = tab.value("document.activeElement.id || document.activeElement.value || ''")
        if at.endswith("-slider") and at not in reached:
            tab.press("ArrowRight", 39)
            after = tab.value(figures)
            assert after != before, at
            before = after
        reached.append(at)
    fields = ("inFlight", "prompt", "output", "context")
    wanted = {"tp", "format", "inFlight", *(f"{name}-slider" for name in fields)}
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
    assert "whole number from 1 to 64; shown is 32" in tab.value(
        "document.getElementById('inFlight-error').textContent"
    )
    assert tab.value("document.getElementById('figures').textContent") == before
    assert tab.errors == []


SLIDE = """((name, place) => { const at = document.getElementById(`${name}-slider`);
at.value = place; at.dispatchEvent(new Event("input")); })"""


@browser
def test_a_load_that_does_not_fit_is_named(tab, tmp_path):
    tab.errors.clear()
    stops = Stops((64, 4096), (64,), (0,), 8)
    asked = {"tensor_parallel_size": [2], "precision": [None]}
    long = explore_page(MODELS[0], ["H100", "B200"], asked, stops=stops)
    asked["max_model_len"] = 2048
    explored = explore_page(MODELS[0], ["H100", "B200"], asked, stops=stops)
    assert all(each.lengths.prompt == 64 for grid in explored.grids for each in grid)
    explored.grids[1].extend(long.grids[1])
    explored.write(tmp_path / "page.html")
    tab.open(tmp_path / "page.html", 1300)
    tab.value(f"{SLIDE}('prompt', 1)")
    said = tab.value("document.getElementById('figures').textContent")
    assert "a request has up to 5,409 tokens, the engine takes 2,048" in said
    tab.value("document.querySelectorAll('#gpus input:checked').forEach((box) => box.click())")
    assert "Nothing runs at this load" in tab.value("document.getElementById('tpot').textContent")
    assert tab.errors == []


@browser
def test_the_command_that_it_shows_gives_what_it_shows(page, tab, tmp_path):
    tab.open(page, 1300)
    tab.value(f"{SLIDE}('context', 1)")
    words = shlex.split(tab.value("document.getElementById('command').textContent"))
    assert words[:2] == ["pinn", "simulate"]
    ran = CliRunner().invoke(app, [*words[1:], "--json", str(tmp_path / "run.json")])
    assert ran.exit_code == 0, ran.output
    figures = json.loads((tmp_path / "run.json").read_text())
    shown = tab.value("((at) => [at.ttft, at.tpot, at.tokens])(predicted(chosen()[0].server, {}))")
    assert 1e3 * shown[0] == pytest.approx(figures["ttft_mean_ms"], rel=0.1)
    assert 1e3 * shown[1] == pytest.approx(figures["itl_mean_ms"], rel=0.05)
    assert shown[2] == pytest.approx(figures["tokens_per_sec"], rel=0.05)


def test_what_it_cannot_show_is_refused_with_the_way_out(tmp_path):
    out = ["--out", str(tmp_path / "e.html")]
    asked = ["explore", "--model", MODELS[1], "--gpu", "H100", *out]
    for more, said in (
        (["--engine", "sglang"], "engine sglang: use 'pinn simulate'"),
        (["--pipeline-parallel-size", "2"], "pipeline parallelism"),
        (["--tensor-parallel-size", "3"], "starts with none of the requested"),
        (["--tensor-parallel-size", "x"], "must be a whole number"),
        (["--gpu", ","], "--gpu is missing"),
        (["--model", " "], "--model is missing"),
        (["--gpu", "H9000"], "H9000"),
    ):
        found = CliRunner().invoke(app, [*asked, *more])
        assert found.exit_code != 0, more
        assert isinstance(found.exception, SystemExit | PinnError)
        assert said in found.output, found.output
    assert not (tmp_path / "e.html").exists()
