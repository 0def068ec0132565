"""The page of a plan needs no other file, can be sorted, and is readable at any size."""

import html
import html.parser
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from browser import CHROMIUM, Tab, browse
from finished_plans import choice as made_up
from finished_plans import plan, point
from PIL import Image

from pinn.planning.page import write_page
from pinn.planning.plan import TIME_BUDGET, HighestRate
from pinn.planning.report import print_plan

#: Script in the page: errors, what it shows, and the results of sorting by cost and by name.
PROBE = """<script>{
const cells = (column) => [...document.querySelectorAll("#table tbody tr")].map(
  (row) => row.cells[column].textContent);
const headings = [...document.querySelectorAll("#table thead th")];
const of = (name) => headings.findIndex((h) => h.querySelector("button").textContent === name);
const found = {
  external: performance.getEntriesByType("resource").map((e) => e.name)
    .filter((name) => !name.startsWith("data:")),
  pictures: [...document.images].map((image) => image.complete && image.naturalWidth),
  wider: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  orders: [],
};
for (const name of ["GPUs", "GPUs", "Rank", "Choice"]) {
  headings[of(name)].querySelector("button").click();
  const sorted = headings.filter((h) => h.hasAttribute("aria-sort"));
  found.orders.push([cells(0).join(" "), sorted.length, sorted[0].getAttribute("aria-sort"),
                     document.getElementById("sorted").textContent]);
}
parent.document.getElementById(window.name).textContent = JSON.stringify({ ...found, errors });
}</script></body>"""

#: Script that runs before everything else in the page.
LISTEN = """<head><script>
const errors = [];
addEventListener("error", (event) => errors.push(String(event.message)), true);
console.error = console.warn = (...words) => errors.push(words.join(" "));
</script>"""


class Page(html.parser.HTMLParser):
    """Parser of addresses, anchors, pictures and tags left open."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.anchors, self.open, self.images = [], set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.addresses += [v for k, v in attributes if k in ("src", "href", "srcset", "action")]
        self.anchors |= {named["id"]} if "id" in named else set()
        self.images += [named] if tag == "img" else []
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("plan")
    write_page(plan(), made)
    return made


@pytest.fixture(scope="module")
def text(folder):
    return (folder / "plan.html").read_text(encoding="utf-8")


def test_it_needs_no_other_file(text):
    page = Page(text)
    assert page.open == []
    for address in page.addresses:
        assert address.startswith(("data:", "#")), address[:80]
    assert {a[1:] for a in page.addresses if a.startswith("#")} <= page.anchors
    assert all(image["alt"] for image in page.images)
    assert not re.search(r"https?:|//\w|url\(|@import", re.sub(r"base64,[\w+/=]+", "", text))


def test_it_says_what_to_rent_and_how_to_start_it(text):
    assert "Rent 12 × H200-SXM as 3 replicas of 4 GPUs, 38.40 per hour" in text
    assert "The probability that the SLO is met is 97 %" in text
    for choice in plan().choices:
        assert html.escape(choice.label) in text
        assert choice.serve_command in text
        assert choice.simulate_command in text
    assert text.count("32.9 GiB &amp; more") == 2
    assert "<8192 tokens>" not in text  # text from a file is escaped


def test_two_pools_are_called_what_they_are(tmp_path):
    made = plan()
    apart = replace(made.choices[0], pools=("2x tp=2", "1x tp=4"), pool_sizes=((2, 2), (1, 4)),
                    gpus=8)  # fmt: skip
    text = write_page(replace(made, choices=[apart], by_gpu=[]), tmp_path).read_text(
        encoding="utf-8"
    )
    assert "Rent 8 × H200-SXM as 2 prefill servers of 2 GPUs and 1 decode server of 4 GPUs" in text
    assert "replica of 8" not in text


@pytest.mark.parametrize(
    ("share", "said"),
    [(1.0, " separately"), (1.2, "more, because the router"), (0.8, "less, because the number of")],
)
def test_a_fleet_s_rate_stands_beside_its_replicas_and_why_they_differ(
    share, said, tmp_path, capsys
):
    made = plan()
    first = next(choice for choice in made.choices if choice.replicas > 1)
    alone = first.replicas * first.highest_rate.per_s
    shown = replace(first, fleet_rate=replace(first.fleet_rate, per_s=share * alone))
    shown = replace(made, choices=[shown], by_gpu=[])
    print_plan(shown, None)
    page = write_page(shown, tmp_path).read_text(encoding="utf-8")
    for text in (page, capsys.readouterr().out):
        words = " ".join(text.replace("\xa0", " ").split())
        assert f"compared with {first.replicas} x {first.highest_rate.per_s:#.3g}" in words
        assert said in words
        assert ("because" in words) == (share != 1.0)


def test_a_fleet_whose_rate_was_not_searched_is_not_compared_with_its_replicas(tmp_path, capsys):
    made = plan()
    first = replace(made.choices[0], fleet_rate=HighestRate(12.0, None), chance=0.8, safe=None,
                    utilization=None, is_partial=True)  # fmt: skip
    shown = replace(made, choices=[first, *made.choices[1:]], stopped=TIME_BUDGET, untried=80,
                    candidates=85, left_s=300.0)  # fmt: skip
    print_plan(shown, None)
    page = write_page(shown, tmp_path).read_text(encoding="utf-8")
    printed = " ".join(capsys.readouterr().out.split())
    page = html.unescape(page.replace("\xa0", " "))
    assert "compared with 3 x 4.40" not in page + printed
    assert ">= 12.0" in printed
    served = "3 replicas with --router least-requests meet the SLO up to 12.0 requests/s or more"
    assert served in printed
    assert "the interval of the rate was not computed in time" in printed
    said = (
        "80 of 85 candidates were not tried, 1 row is incomplete; run the same command to continue"
    )
    for text in (page, printed):
        assert said in text
        assert "about 5.0 min or more are needed for all candidates" in text
    # The warning stands beside the recommendation, and the recommendation says so itself.
    assert re.search(r"all candidates\. Recommended so far: vllm serve", printed)
    assert page.index(said) < page.index("<dl>")
    assert "Best so far: rent 12 ×" in page


def test_one_replica_has_one_row_at_the_planned_rate_and_one_with_headroom(tmp_path, capsys):
    made = plan()
    one = made_up("H100-SXM", 1, 1, 17.9, 2.5)
    one = replace(one, with_headroom=point(18.0, 1), highest_rate=HighestRate(17.9, 18.0, [17.9]))
    ask = replace(made.ask, headroom=0.5)
    shown = replace(made, ask=ask, choices=[one], by_gpu=[])
    print_plan(shown, None)
    printed = " ".join(capsys.readouterr().out.split())
    page = write_page(shown, tmp_path).read_text(encoding="utf-8")
    assert "12 requests/s (with headroom: 18)" in printed
    assert "With headroom, at 18 requests/s: p99 E2E 15 s, 99.0 % of requests" in printed
    rows = re.findall(r'<tr><th scope="row" class="text">([^<]+)</th><td>([\d.]+)</td>', page)
    assert rows[:2] == [
        ("all replicas, with headroom", "18.0"),
        ("one replica, requested rate", "12.0"),
    ]
    assert "over 1 seeds" not in page
    assert "bottleneck: decode bandwidth" in page


def test_pictures_lie_beside_it_and_are_not_empty(folder):
    pictures = sorted(folder.glob("*.png"))
    assert [path.stem for path in pictures] == ["frontier", "percentiles", "step-time"]
    for path in pictures:
        assert np.asarray(Image.open(path).convert("L")).std() > 10


def test_colours_of_neighbouring_parts_survive_grey(folder):
    shades = np.asarray(Image.open(folder / "step-time.png").convert("L")).astype(int)
    row = shades[shades.shape[0] // 5]
    counts = np.bincount(row, minlength=256)
    flat = np.flatnonzero(counts > 0.04 * len(row))
    flat = flat[flat < 250]
    assert len(flat) >= 3
    assert np.diff(flat).min() > 20


@pytest.mark.parametrize(
    "given",
    [{"rate_per_s": None}, {"has_prices": False}, {"has_choices": False},
     {"rate_per_s": None, "has_prices": False, "has_choices": False}],
)  # fmt: skip
def test_what_was_not_asked_is_not_shown(given, tmp_path):
    text = write_page(plan(**given), tmp_path).read_text(encoding="utf-8")
    assert Page(text).open == []
    shown = re.findall(r'<button type="button">([^<]+)</button>', text)
    has_choices = given.get("has_choices", True)
    assert ("Cost/h" in shown) == (given.get("has_prices", True) and has_choices)
    assert ("P(SLO met)" in shown) == (given.get("rate_per_s", 12) is not None and has_choices)
    assert "None" not in re.sub(r"<[^>]*>|None of 84 candidates", "", text)
    assert ("None of 84 candidates meets the SLO" in text) == (not has_choices)


def test_it_imports_no_torch():
    code = "import sys, pinn.planning.page; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium installed")
def test_a_browser_shows_and_sorts_it_at_any_zoom(text, tmp_path):
    probed = text.replace("<head>", LISTEN, 1).replace("</body>", PROBE)
    # A window of 1280 pixels has 320 at 400 % zoom (WCAG 2.1, 1.4.10).
    frames = "".join(
        f'<pre id="w{width}"></pre><iframe name="w{width}" width="{width}" height="900" '
        f'srcdoc="{html.escape(probed)}"></iframe>'
        for width in (1280, 320)
    )
    outer = tmp_path / "outer.html"
    outer.write_text(f"<!DOCTYPE html><meta charset='utf-8'>{frames}", encoding="utf-8")
    dumped = browse(outer, tmp_path, "--virtual-time-budget=5000", "--dump-dom")
    for width in (1280, 320):
        said = re.search(rf'<pre id="w{width}">(.*?)</pre>', dumped)[1]
        found = json.loads(html.unescape(said))
        assert found["errors"] == []
        assert found["external"] == []
        assert len(found["pictures"]) == 3
        assert all(found["pictures"])
        assert found["wider"] <= 0, "the page itself scrolls sideways"
        assert found["orders"] == [
            ["1 2 3", 1, "ascending", "Sorted by GPUs, ascending"],
            ["3 2 1", 1, "descending", "Sorted by GPUs, descending"],
            ["1 2 3", 1, "ascending", "Sorted by Rank, ascending"],
            ["2 1 3", 1, "ascending", "Sorted by Choice, ascending"],
        ]


#: Names of the second choice's metrics inside the window, and the excess of its width.
SEEN = """(() => {
  const row = document.querySelectorAll("#table tbody tr")[1];
  const within = (box) => box.width > 0 && box.left >= 0 && box.right <= innerWidth;
  const cells = [...row.cells].filter((cell) => within(cell.getBoundingClientRect()));
  const region = document.getElementById("table").parentElement;
  return [cells.map((cell) => cell.dataset.name || "").filter(Boolean),
          region.scrollWidth - region.clientWidth,
          document.documentElement.scrollWidth - document.documentElement.clientWidth];
})()"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium installed")
@pytest.mark.parametrize("width", [1400, 1230, 768, 390])
def test_every_figure_of_a_choice_is_in_the_window(width, tmp_path):
    made = plan()
    apart = replace(made.choices[0], pools=("2x tp=2", "1x tp=4"), pool_sizes=((2, 2), (1, 4)),
                    gpus=8, label="H100-SXM 2x tp=2 prefill + 1x tp=4 decode bf16")  # fmt: skip
    page = write_page(replace(made, choices=[apart, *made.choices]), tmp_path)
    tab = Tab(tmp_path)
    try:
        tab.open(page, width)
        names, region, whole = tab.value(SEEN)
    finally:
        tab.close()
    assert names == ["GPUs", "Replicas", "Cost/h", "Per million output tokens", "Max req/s", "Used",
                     "P(SLO met)", "p99 E2E", "95 %", "Limited by"]  # fmt: skip
    assert region <= 0
    assert whole <= 0
