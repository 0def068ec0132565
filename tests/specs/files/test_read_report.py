import pytest

from pinn.common.files import ReadReport, file_sha256
from pinn.errors import PinnError


def test_counts_must_add_up():
    ReadReport("a", "1", "", read=5, accepted=3, refused={"x": 1, "y": 1})
    with pytest.raises(PinnError, match="5 rows were read, but 3 accepted and 1 refused"):
        ReadReport("a", "1", "", read=5, accepted=3, refused={"x": 1})


def test_negative_counts_are_refused():
    with pytest.raises(PinnError, match="negative"):
        ReadReport("a", "1", "", read=1, accepted=2, refused={"x": -1})


def test_json_round_trip_keeps_the_order_of_reasons():
    report = ReadReport("a", "1", "ff", read=3, accepted=0, refused={"z": 1, "a": 2})
    again = ReadReport.from_json(report.to_json())
    assert again == report
    assert list(again.refused) == ["z", "a"]


def test_other_json_is_no_report():
    with pytest.raises(PinnError, match="not those of a read report"):
        ReadReport.from_json({"rows": 3})


def test_sha256_of_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a").startswith("ba7816bf8f01cfea")
