"""Draws of prose: decided by their seed, complete, and apart for an odd and an even seed."""

from collections import Counter

import draw_prose
import pytest
from prose_pieces import pieces


@pytest.fixture(scope="module")
def known():
    return list(pieces())


def test_a_seed_decides_its_draw(known):
    assert draw_prose.draw(11, known) == draw_prose.draw(11, list(pieces()))
    assert draw_prose.draw(11, known) != draw_prose.draw(13, known)


def test_two_seeds_draw_eighty_pieces_once(known):
    both = [*draw_prose.draw(11, known), *draw_prose.draw(12, known)]
    assert len(set(both)) == 80
    kinds = Counter(piece.kind for piece in both)
    assert (kinds["docstring"], kinds["comment"], kinds["sentence"]) == (20, 10, 25)
    assert kinds["help"] + kinds["error"] + kinds["output"] == 25


def test_pieces_show_what_readers_of_their_places_see(known):
    drawn = next(p for p in known if p.before.startswith("def draw(seed"))
    assert drawn.text == draw_prose.draw.__doc__
    assert any(p.kind == "error" and "{path}: " in p.text for p in known)
    assert all(p.text.strip() for p in known)


def test_a_text_in_a_long_dictionary_is_shown_with_its_key(known):
    shown = {piece.text: piece.before for piece in known if piece.kind == "output"}
    assert (
        "... 'image_size': 'Size of each image in pixels.'"
        in shown["Size of each image in pixels."]
    )
    assert all(len(before) <= 310 for before in shown.values())


def test_sentences_are_neither_code_nor_tables_nor_generated(known):
    said = [piece.text for piece in known if piece.kind == "sentence"]
    assert not any("```" in text or text.startswith("|") or "<!--" in text for text in said)
