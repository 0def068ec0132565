"""Meaning of each engine's words for speculative decoding."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.engines.assumptions import acceptance_line
from pinn.engines.configurations import canonical, make_deployment
from pinn.engines.recipe import ASSUMED, FLAG
from pinn.errors import PinnError
from pinn.specs.speculation import METHODS, Speculation, default_acceptance

LLAMA, DEEPSEEK = "meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-R1"


def deployed(model=LLAMA, **flags):
    given = {"model": model, "gpu": "H200", "force": True}  # refusals have tests of their own
    return make_deployment(canonical({**given, **flags}))


def chosen(model=LLAMA, **flags):
    return deployed(model, **flags).recipe.speculation


def sizes(found):
    return found.method, found.tokens, found.passes, found.branches, len(found.acceptance)


@pytest.mark.parametrize(
    ("engine", "flags", "expected"),
    [
        ("vllm", {"speculative_config": {"method": "deepseek_mtp", "num_speculative_tokens": 3}},
         ("mtp", 3, 3, 1, 3)),
        ("vllm", {"speculative_config": {"method": "mtp"}}, ("mtp", 1, 1, 1, 1)),
        ("vllm", {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4,
                                         "prompt_lookup_max": 5}}, ("ngram", 4, 0, 1, 0)),
        ("vllm", {"speculative_config": {"model": "org/EAGLE3-Llama", "num_speculative_tokens": 2}},
         ("eagle3", 2, 2, 1, 2)),
        ("vllm", {"speculative_config": {"model": LLAMA, "num_speculative_tokens": 2}},
         ("draft_model", 2, 2, 1, 2)),
        ("sglang", {"speculative_algorithm": "EAGLE"}, ("mtp", 3, 3, 1, 3)),
        ("sglang", {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 5,
                    "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8,
                    "speculative_draft_model_path": "org/draft"}, ("eagle3", 7, 5, 4, 5)),
        ("sglang", {"speculative_algorithm": "ngram"}, ("ngram", 11, 0, 1, 0)),
        ("trtllm", {"speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": 3}},
         ("mtp", 3, 3, 1, 3)),
        ("trtllm", {"speculative_config": {"decoding_type": "Eagle", "max_draft_len": 4}},
         ("eagle3", 4, 4, 1, 4)),
    ],
)  # fmt: skip
def test_every_engines_words_come_to_the_same_numbers(engine, flags, expected):
    assert sizes(chosen(DEEPSEEK, engine=engine, tensor_parallel_size=8, **flags)) == expected


def test_llama_gets_sglangs_tree():
    tree = chosen(engine="sglang", speculative_algorithm="EAGLE",
                  speculative_draft_model_path="org/eagle")  # fmt: skip
    assert sizes(tree) == ("eagle", 7, 5, 4, 5)


def test_nothing_is_drafted_unless_asked():
    assert chosen() is None
    assert deployed().draft is None
    assert chosen(engine="sglang", speculative_num_steps=3) is None


def test_an_acceptance_is_given_or_assumed():
    config = {"method": "eagle3", "num_speculative_tokens": 3}
    assumed = deployed(speculative_config=config).recipe
    assert assumed.speculation.acceptance == (default_acceptance("eagle3").rate,) * 3
    assert assumed.origins["speculation"].kind == ASSUMED
    assert "arXiv" in assumed.origins["speculation"].text
    given = deployed(speculative_config=config, speculative_acceptance="0.9,0.8,0.5,0.1").recipe
    assert given.speculation.acceptance == (0.9, 0.8, 0.5)
    assert given.origins["speculation"].kind == FLAG
    assert math.isclose(given.speculation.tokens_per_step, 1 + 0.9 + 0.9 * 0.8 + 0.9 * 0.8 * 0.5)
    assert given.described()["speculation"]["value"]["method"] == "eagle3"
    for method in {*METHODS} - {"ngram"}:
        default = default_acceptance(method)
        assert 0 <= default.low <= default.rate <= default.high <= 1, method


def test_an_assumed_acceptance_is_a_measured_one():
    assert [default_acceptance(m).rate for m in ("eagle3", "eagle", "mtp")] == [0.38, 0.62, 0.6]
    config = {"method": "eagle3", "num_speculative_tokens": 3}
    found = deployed(speculative_config=config)
    assert found.recipe.speculation.tokens_per_step == pytest.approx(1 + 0.38 + 0.38**2 + 0.38**3)
    line = acceptance_line(found)
    assert line.startswith(
        "Speculative decoding: eagle3, 3 drafted tokens, 1.58 tokens per request"
    )
    assert "ASSUMED acceptance 0.38 (0.38 to 0.8)" in line
    given = acceptance_line(deployed(speculative_config=config, speculative_acceptance="0.7"))
    assert "ASSUMED" not in given
    assert acceptance_line(deployed()) is None


def test_n_grams_need_an_acceptance():
    config = {"method": "ngram", "num_speculative_tokens": 3}
    unknown = deployed(speculative_config=config)
    assert "ASSUMED" not in acceptance_line(unknown)
    assert "give --speculative-acceptance, measured values are 0 to 1" in acceptance_line(unknown)
    assert unknown.recipe.described()["speculation"]["value"]["tokens_per_step"] is None
    with pytest.raises(PinnError, match=r"ngram drafts: give --speculative-acceptance"):
        unknown.recipe.speculation.tokens_per_step  # noqa: B018
    assert chosen(speculative_config=config, speculative_acceptance="0").tokens_per_step == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
@settings(max_examples=50)
def test_tokens_per_step_is_what_a_draw_expects(rates):
    found = Speculation("mtp", len(rates), len(rates), 1, tuple(rates)).tokens_per_step
    draws = np.random.default_rng(0).random((4000, len(rates))) < np.array(rates)
    counted = 1 + np.cumprod(draws, axis=1).sum(1)
    # What is rarer than one in 4,000 may never be drawn.
    assert abs(counted.mean() - found) <= 5 * (counted.std() / 4000**0.5 + len(rates) / 4000)
    assert 1 <= found <= 1 + len(rates)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"speculative_config": "mtp"}, "must be a JSON object such as"),
        ({"speculative_config": {"method": "medusa", "num_speculative_tokens": 2}}, "'medusa'"),
        ({"speculative_config": {"method": "eagle"}}, "lacks the key num_speculative_tokens"),
        ({"speculative_config": {"num_speculative_tokens": 2}}, "neither the key method nor"),
        ({"speculative_config": {"method": "mtp", "num_draft": 2}}, r"unknown keys \(num_draft\)"),
        ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 0}}, "must be 1 to 64"),
        ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 1.5}}, "whole number"),
        ({"speculative_acceptance": "1.2"}, "a rate from 0 to 1"),
        ({"speculative_acceptance": "often"}, "a rate from 0 to 1"),
        ({"speculative_acceptance": "0.9,0.8",
          "speculative_config": {"method": "mtp", "num_speculative_tokens": 3}},
         "has rates for 2 positions"),
        ({"speculative_config": {"method": "mtp"}, "pipeline_parallel_size": 2}, "pipeline par"),
        ({"engine": "sglang", "speculative_algorithm": "LOOKAHEAD"}, "use one of EAGLE, NEXTN"),
        ({"engine": "sglang", "speculative_algorithm": "EAGLE", "speculative_num_steps": 2,
          "speculative_num_draft_tokens": 9}, "does not fit a tree of 2 steps"),
        ({"engine": "trtllm", "speculative_config": {"decoding_type": "Medusa"}}, "use MTP, Eagle"),
        ({"speculative_num_steps": 2}, "vllm has no flag --speculative-num-steps"),
    ],
)  # fmt: skip
def test_what_is_no_speculation_is_refused(flags, message):
    with pytest.raises(PinnError, match=message):
        deployed(**flags)


def test_drafts_are_what_their_method_runs():
    config = {"num_speculative_tokens": 2}
    mtp = deployed(DEEPSEEK, tensor_parallel_size=8, speculative_config={"method": "mtp"}).draft
    assert (mtp.model.layers, mtp.model.moe_layers, mtp.shares_head) == (1, 1, True)
    assert mtp.model.moe == deployed(DEEPSEEK, tensor_parallel_size=8).model.moe
    eagle = deployed(DEEPSEEK, tensor_parallel_size=8,
                     speculative_config=config | {"method": "eagle"}).draft  # fmt: skip
    assert (eagle.model.layers, eagle.model.moe, eagle.joined) == (1, None, 2)
    small = deployed(speculative_config=config | {"model": "Qwen/Qwen3-0.6B"}).draft
    assert (small.model.name, small.projection_weights) == ("Qwen/Qwen3-0.6B", 0)
    assert deployed(speculative_config=config | {"method": "ngram"}).draft is None


def test_engines_change_their_limits_for_it():
    tree = {"engine": "sglang", "speculative_algorithm": "EAGLE"}
    older, newest = deployed(**tree, engine_version="0.5.9").recipe, deployed(**tree).recipe
    assert (older.max_requests, older.overlap) == (48, False)
    assert (newest.max_requests, newest.overlap) == (48, True)
    assert deployed(**tree, max_running_requests=200).recipe.max_requests == 200
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    older = deployed(speculative_config=ngram, engine_version="0.32.0").recipe
    assert (older.overlap, deployed(speculative_config=ngram).recipe.overlap) == (False, True)
    few = {"max_num_seqs": 16, "speculative_config": {"method": "mtp", "num_speculative_tokens": 3}}
    assert deployed(**few).recipe.graph_tokens == 128
