"""Prices of GPUs, by the hour and by purchase, as text, mappings and files."""

from __future__ import annotations

import pytest

from pinn.errors import PinnError
from pinn.planning.prices import Price, read_prices

OWNED = Price(30000 / (4 * 8766), 30000, 4)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.yaml", "H100: 2.5\nL40S: {per_hour: 1.1}\nH200: {purchase_price: 30000, years: 4}\n"),
        (
            "p.json",
            '{"H100": 2.5, "L40S": 1.1, "H200": {"purchase_price": 30000, "years": 4}}',
        ),
        ("p.csv", "gpu,per_hour,purchase_price,years\nH100,2.5,,\nL40S,1.1,,\nH200,,30000,4\n"),
    ],
)
def test_a_file_has_both_kinds_of_prices(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    wanted = {"H100-SXM": Price(2.5), "L40S": Price(1.1), "H200-SXM": OWNED}
    assert read_prices(path) == read_prices(str(path)) == wanted


def test_owned_hardware_is_written_off_over_its_years():
    found = read_prices("L40S=1.1", {"H200": 30000}, 4)
    assert found == read_prices({"L40S": 1.1}, "H200=30000", 4.0)
    assert found["H200-SXM"].per_hour == pytest.approx(0.8556, abs=1e-4)
    said = "0.856 = 30000 / (4 years x 8,766 hours), excluding power and space"
    assert found["H200-SXM"].origin == said
    assert found["L40S"].origin == ""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("H100=0",), "--price: cannot read 'H100=0'"),
        (("H100=2 h100=3",), "H100-SXM has the prices 2 and 3 per hour: give one"),
        (("H100=2", "H100=9000", 3), "H100-SXM has the prices 2 and 0.342"),
        (("", "H100=9000"), "--purchase-price needs --purchase-years"),
        (("", "H100=9000", -1), "positive number of years, got -1"),
        (("", "", 3), "--purchase-years is given without --purchase-price"),
        (("nothing.yaml",), "nothing.yaml"),
    ],
)
def test_bad_prices_are_refused(given, says):
    with pytest.raises(PinnError, match=says):
        read_prices(*given)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("p.yaml", "H100: {years: 4}", "H100: expected a positive price per hour, .* got years 4"),
        ("p.yaml", "H100: -2", "H100: expected a positive price .* got per_hour -2"),
        ("p.yaml", "H100: {cost: 4}", "cost: this key is unknown"),
        ("p.csv", "gpu,cost\nH100,4\n", "the column 'cost' is unknown"),
        ("p.csv", "gpu,per_hour,purchase_price\nH100,4,5\n", "line 2: .*got per_hour 4, purchase_"),
        ("p.csv", "per_hour\n4\n", "the column gpu is missing"),
    ],
)
def test_bad_files_are_refused_with_the_place(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(PinnError, match=says):
        read_prices(tmp_path / name)
