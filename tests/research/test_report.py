"""The page needs no other file, names its data, and has visible content."""

import base64
import html.parser
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from browser import CHROMIUM, browse
from evaluations import MODELS, write_evaluation
from matplotlib.colors import to_rgb
from PIL import Image

from pinn.common.files import find_checkpoint
from pinn.common.plots import MARKERS
from pinn.errors import PinnError
from pinn.evaluation.report.contents import read_tables
from pinn.evaluation.report.write import DOCS_PICTURES, render, summary, write_report
from pinn.surrogate.uncertainty.intervals import read_calibration

EVIDENCE = "4 models <of> which 3 are made up"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of an evaluation with everything that a report can show."""
    return write_evaluation(tmp_path_factory.mktemp("evaluation"))


@pytest.fixture(scope="module")
def page(folder):
    return write_report(folder, EVIDENCE, folder / "images")


class Page(html.parser.HTMLParser):
    """Parser of a page's references, of the text below its tables, and of its pictures."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.images, self.captions, self.open = [], [], [], []
        self.anchors, self.texts = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        assert tag not in ("script", "iframe", "object", "embed", "base"), tag
        self.addresses += [v for k, v in attributes if k in ("src", "href", "srcset", "action")]
        self.addresses += [named["content"]] if named.get("http-equiv") else []
        self.anchors |= {named["id"]} if "id" in named else set()
        if tag == "img":
            self.images.append(named)
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["caption"]:
            self.captions.append(data)
        self.texts.append(data)


@pytest.fixture(scope="module")
def parsed(page):
    return Page(page.read_text(encoding="utf-8"))


def test_no_external_address(parsed, page):
    assert parsed.open == []
    for address in parsed.addresses:
        assert address.startswith(("data:image/png;base64,", "#")), address[:80]
    assert {a[1:] for a in parsed.addresses if a.startswith("#")} <= parsed.anchors
    text = re.sub(r"base64,[\w+/=]+", "", page.read_text(encoding="utf-8"))
    assert not re.search(r"https?:|//\w|url\(|@import", text)


def test_every_table_says_what_it_rests_on(parsed):
    assert len(parsed.captions) >= 8
    for caption in parsed.captions:
        assert caption.endswith(f"Rests on {EVIDENCE}.")


def test_pictures_are_in_the_page_and_beside_it(parsed, folder):
    in_page = {base64.b64decode(image["src"].partition(",")[2]) for image in parsed.images}
    beside = {path.read_bytes() for path in (folder / "figures").glob("*.png")}
    assert in_page == beside
    assert {path.stem for path in (folder / "images").glob("*.png")} == set(DOCS_PICTURES)
    names = {path.stem for path in (folder / "figures").glob("*.png")}
    assert {
        "accuracy-leave-one-model-out-tpot", "agreement-leave-one-gpu-out-ttft", "loads",
        "calibration",
    } <= names  # fmt: skip
    for image in parsed.images:
        assert image["alt"]


def test_pictures_are_not_empty_in_grey(folder):
    for path in (folder / "figures").glob("*.png"):
        assert np.asarray(Image.open(path).convert("L")).std() > 10, path


def test_looks_differ_in_marker_and_in_grey():
    """Check the CIE lightness of the colours, which is all that a grey print keeps."""
    linear = np.array([to_rgb(colour) for _, colour in MARKERS])
    linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
    lightness = 116 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16
    assert np.diff(np.sort(lightness)).min() > 4
    assert (np.abs(np.diff(lightness)) > 20).all()
    assert len({marker for marker, _ in MARKERS}) == len(MARKERS)


def test_the_page_starts_with_a_summary(page, parsed):
    text = page.read_text(encoding="utf-8")
    assert text.index("<dl>") < min(text.index("<h2"), text.index("<img"))
    for label in ("Held out", "TPOT", "TTFT", "E2E", "90 % intervals"):
        assert label in parsed.texts
    assert any("3 models" in part and "24 rows" in part for part in parsed.texts)


def test_the_summary_goes_by_the_intervals_of_the_checkpoint_that_it_shows(folder):
    tables = read_tables(folder)
    own = dict(summary(tables))["90 % intervals"]
    stated = [
        {"split": split, "part": part, "metric": "tpot", "coverage": share}
        for split, part, share in (
            ("leave-one-model-out", "all", 0.834),
            ("leave-one-model-out", "model", 0.5),
            ("serving-runs-leave-one-model-out", "all", 1.0),
        )
    ]
    found = dict(summary(replace(tables, stated=pd.DataFrame(stated))))["90 % intervals"]
    assert "unseen models: cover TPOT 90 %" in own
    assert [int(share) for share in re.findall(r"TPOT (\d+) %", found)] == [83, 100]


def test_the_released_intervals_are_such_a_table(folder):
    released = pd.DataFrame(read_calibration(find_checkpoint()).coverage)
    whole = released[(released["part"] == "all") & (released["metric"] == "tpot")]
    text = dict(summary(replace(read_tables(folder), stated=released)))["90 % intervals"]
    assert text.count("cover TPOT") == len(whole)
    for share in whole["coverage"]:
        assert f"cover TPOT {100 * share:.0f} %" in text


def test_the_summary_compares_on_rows_that_both_predict(folder):
    """Check that a peer that fails on half of the rows is compared on the others."""
    tables = read_tables(folder)
    rows = tables.predictions
    mine = rows[(rows["split"] == "leave-one-model-out") & (rows["method"] == "network")]
    peer = mine.assign(method="<peer>", tpot_s=mine["tpot_measured_s"] * 1.5)
    half = peer["row_id"].isin(peer["row_id"].iloc[::2])
    peer["tpot_s"] = peer["tpot_s"].where(half)
    together = replace(tables, predictions=pd.concat([rows, peer], ignore_index=True))
    text = dict(summary(together))["TPOT"]
    errors = 100 * (mine["tpot_s"] / mine["tpot_measured_s"] - 1).abs()
    assert f"unseen models: {errors.median():.1f} % (the best peer, <peer>: 50.0 %" in text
    assert f"the network {errors.iloc[::2].median():.1f} % on its 12 rows)" in text
    assert "&lt;peer&gt;" in render(together, {}, EVIDENCE)


def test_captions_of_pictures_say_n_and_split(parsed):
    about = [image["alt"] for image in parsed.images]
    assert all(
        re.search(r"n = \d+|\d+ measured|\d+ vLLM deployments|Split ", text) for text in about
    ), about


def test_every_section_shows_something(parsed):
    assert not [text for text in parsed.texts if "Nothing to show" in text]
    text = " ".join(parsed.texts)
    for method in ("network", "global vector"):
        assert method in text
    for model in MODELS:
        assert model.split("/")[-1] in text


def test_what_was_not_made_is_said(folder, tmp_path):
    few = shutil.copytree(folder, tmp_path / "few")
    for name in ("coverage", "ranking", "decisions"):
        (few / f"{name}.csv").unlink()
    rows = pd.read_parquet(few / "predictions.parquet")
    rows[rows["split"] == "leave-one-model-out"].to_parquet(few / "predictions.parquet")
    parsed = Page(write_report(few, EVIDENCE).read_text(encoding="utf-8"))
    missing = [text for text in parsed.texts if "Nothing to show" in text]
    assert len(missing) == 3


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(PinnError, match=r"results\.csv do not exist: run 'pinn evaluate' first"):
        read_tables(tmp_path)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium installed")
def test_a_browser_shows_it(page, tmp_path):
    shot = tmp_path / "page.png"
    browse(page, tmp_path, "--window-size=1000,1600", f"--screenshot={shot}")
    pixels = np.asarray(Image.open(shot).convert("L"))
    written = pixels < 200
    assert 0.01 < written.mean() < 0.5
    # Every fifth of the page has some content.
    assert all(part.any() for part in np.array_split(written, 5))
