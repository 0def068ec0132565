"""Speculative decoding: draft tokens, their verification and their acceptance in a step.

Engines have different flags for speculation, which are all converted to :class:`Speculation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple

from pinn.common.documents import is_finite, json_object, misfit
from pinn.common.files import data_folder, read_rows
from pinn.errors import PinnError

if TYPE_CHECKING:
    from pinn.specs.serving import ServingSpec

METHODS = NGRAM, DRAFT_MODEL, EAGLE, EAGLE3, MTP = "ngram", "draft_model", "eagle", "eagle3", "mtp"

#: Value of ``--speculative-config`` that disables speculative decoding.
NONE = "none"
#: Maximum number of draft tokens per step. A larger number is rejected as a mistake.
MOST_TOKENS = 64


class AssumedAcceptance(NamedTuple):
    """Acceptance that is assumed for a method's draft tokens if the user gives none.

    Attributes:
        rate: Measured probability that a draft token is accepted if all before it were; None if it
            depends too much on the generated text.
        low: Minimum of the acceptance rates in the sources.
        high: Maximum of the acceptance rates in the sources.
        source: Names of the sources.
    """

    rate: float | None
    low: float
    high: float
    source: str

    @property
    def text(self) -> str:
        """Return the assumed acceptance rate and its range as text, or a request to give a rate."""
        spread = f"{self.low:g} to {self.high:g}"
        if self.rate is None:
            return f"give --speculative-acceptance, measured values are {spread}: {self.source}"
        return f"acceptance {self.rate:g} ({spread}): {self.source}"


# Acceptance rates are derived from measurements: the minimum number of tokens per step that
# SGLang's own tests accept (0.5.23's wheel, sglang/test/server_fixtures and
# kits/spec_server_kits.py: GSM8K), converted to the equal rate at all positions that yields this
# number. The rate of mtp is instead fitted to measured deployments. The ends of the range are rates
# of greedy sampling from papers, which were not verified. Rates vary by tenths with text, model and
# sampling.


@cache
def default_acceptance(method: str) -> AssumedAcceptance:
    """Return the acceptance rate that ``acceptance.csv`` assumes for a drafting method."""
    rows = {row["method"]: row for row in read_rows(data_folder("engines") / "acceptance.csv")}
    row = rows[method]
    rate = float(row["rate"]) if row["rate"] else None
    return AssumedAcceptance(rate, float(row["low"]), float(row["high"]), row["source"])


@cache
def _words(engine: str, kind: str) -> dict[str, str]:
    """Return the meaning of an engine's terms in one category of ``speculation_words.csv``.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        kind: Category of terms. ``key`` is a key of the engine's JSON object, and ``no_effect`` is
            a key that does not affect predictions. ``method`` is a decoding type of TensorRT-LLM
            (``tensorrt_llm/llmapi/llm_args.py``) or an algorithm of SGLang, whose ``EAGLE`` without
            a draft model is ``MTP``.
    """
    rows = read_rows(data_folder("engines") / "speculation_words.csv")
    return {r["word"]: r["method"] for r in rows if (r["engine"], r["kind"]) == (engine, kind)}


@dataclass(frozen=True)
class Speculation:
    """Settings of speculative decoding.

    Attributes:
        method: One of ``METHODS``.
        tokens: Draft tokens per request that a step verifies in addition to the next token.
        passes: Forward passes of the draft model per step; 0 if drafting does not use the GPU.
        branches: Number of draft branches per request that each pass after the first one extends
            (the top-k of a tree); 1 for a chain.
        acceptance: Probability, by position, that a draft token is accepted if all before it were;
            empty if unknown.
        draft: Name of the draft model, or path of its config.json; empty if a layer of the target
            model drafts tokens.
    """

    method: str
    tokens: int
    passes: int
    branches: int
    acceptance: tuple[float, ...]
    draft: str = ""

    @property
    def positions(self) -> int:
        """Return the maximum accepted draft tokens per request and step; for a tree, its depth."""
        return min(self.passes or self.tokens, self.tokens)

    @property
    def chances(self) -> tuple[float, ...]:
        """Return the probabilities that at least 1, 2, ... draft tokens of a request are accepted.

        Raises:
            PinnError: If no acceptance rate is given, and none is assumed for the method.
        """
        if not self.acceptance:
            reason = default_acceptance(self.method).text
            raise PinnError(f"no acceptance rate is assumed for {self.method} drafts: {reason}")
        return tuple(accumulate(self.acceptance, mul))

    @property
    def tokens_per_step(self) -> float:
        """Return the expected tokens per request per decode step: 1 + the sum of ``chances``.

        The sum is equation 1 of Leviathan et al. (arXiv 2211.17192), for rates that differ by
        position.
        """
        return 1.0 + sum(self.chances)

    def described(self) -> dict[str, object]:
        """Return the settings, and ``tokens_per_step``, as an object for JSON."""
        gain = self.tokens_per_step if self.acceptance else None
        return asdict(self) | {"acceptance": list(self.acceptance), "tokens_per_step": gain}


def with_acceptance(asked: Speculation, text: str) -> Speculation:
    """Add given or assumed acceptance rates to speculation settings.

    Raises:
        PinnError: If the text is not a list of rates, or has fewer rates than positions at which
            tokens are drafted.
    """
    given, assumed = read_acceptance(text), default_acceptance(asked.method).rate
    if not given and assumed is None:
        return asked
    given = given or (assumed or 0.0,)
    if len(given) == 1:
        given *= asked.positions
    if len(given) < asked.positions:
        raise PinnError(
            f"--speculative-acceptance {text!r} has rates for {len(given)} positions, but "
            f"{asked.positions} tokens are drafted: give one rate per token, or a single rate"
        )
    return replace(asked, acceptance=given[: asked.positions])


def read_acceptance(text: str) -> tuple[float, ...]:
    """Parse the acceptance rates in ``--speculative-acceptance``; empty for an empty string.

    Raises:
        PinnError: If the text is neither a rate nor a list of rates.

    >>> read_acceptance("0.9,0.8"), read_acceptance("[0.7]"), read_acceptance("")
    ((0.9, 0.8), (0.7,), ())
    """
    words = [w for w in text.strip().removeprefix("[").removesuffix("]").split(",") if w.strip()]
    try:
        rates = tuple(float(word) for word in words)
    except ValueError:
        rates = (-1.0,)
    if len(rates) > MOST_TOKENS or not all(0 <= rate <= 1 for rate in rates):
        raise PinnError(
            "--speculative-acceptance must be a rate from 0 to 1, or a comma-separated rate for "
            f"each position, got {text!r:.80}: correct the flag, or omit the flag to use the "
            "measured rate"
        )
    return rates


def asked_of_vllm(config: str) -> Speculation:
    """Return the speculation settings in vLLM's ``--speculative-config``.

    Raises:
        PinnError: If the flag is not a JSON object, or its method is not modelled.
    """
    values = _asked("vllm", config, '{"method": "mtp", "num_speculative_tokens": 2}')
    draft = _text(values, "model")
    method = _text(values, "method") or _guessed(draft)
    method = MTP if method.endswith("_mtp") else method.strip("[]")
    if method not in METHODS:
        known = f"one of {', '.join(METHODS)}"
        raise _not_modelled("method of --speculative-config", method, known)
    tokens = _count(values, "num_speculative_tokens", 1 if method == MTP else None)
    return _chain(method, tokens, "" if method in (MTP, NGRAM) else draft)


def asked_of_trtllm(config: str) -> Speculation:
    """Return the speculation settings in TensorRT-LLM's ``speculative_config``.

    The keys of this JSON object are those of ``llmapi/llm_args.py``.

    Raises:
        PinnError: If the flag is not a JSON object, or its method is not modelled.
    """
    values = _asked("trtllm", config, '{"decoding_type": "MTP", "num_nextn_predict_layers": 2}')
    kind = _text(values, "decoding_type")
    method = _words("trtllm", "method").get(kind.lower())
    if method is None:
        known = "MTP, Eagle, NGram or DraftTarget"
        raise _not_modelled("decoding_type of --speculative-config", kind, known)
    if method == MTP:
        return _chain(MTP, _count(values, "num_nextn_predict_layers", 1))
    return _chain(method, _count(values, "max_draft_len"), _text(values, "speculative_model_dir"))


#: Values of ``--speculative-num-steps``, ``-eagle-topk`` and ``-num-draft-tokens`` that SGLang
#: chooses for a tree of drafts and for a chain (0.5.23 arg_groups/speculative_hook.py:
#: ``_auto_choose_speculative_params``, before 0.5.13 ``server_args.py:
#: auto_choose_speculative_params``). Llama models use a tree. Until 0.5.7, so do all other model
#: types, except ``_CHAINED_AT_FIRST`` and, from 0.5.6 on, GLM-4. Separate draft models always draft
#: a chain.
_SGLANG_TREE, _SGLANG_CHAIN = (5, 4, 8), (3, 1, 4)
_CHAINED_AT_FIRST = {"deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "gpt_oss"}
#: SGLang's default number of draft tokens for n-gram speculation (``_handle_ngram``; before 0.5.10
#: ``speculative_ngram_max_match_window_size``).
SGLANG_NGRAM_TOKENS = 12


def _sglang_sizes(method: str, model_type: str, release: tuple[int, ...]) -> tuple[int, int, int]:
    if method == DRAFT_MODEL:
        return _SGLANG_CHAIN
    if release >= (0, 5, 8):
        return _SGLANG_TREE if model_type == "llama" else _SGLANG_CHAIN
    chained = _CHAINED_AT_FIRST | ({"glm4_moe"} if release >= (0, 5, 6) else set())
    return _SGLANG_CHAIN if model_type in chained else _SGLANG_TREE


def asked_of_sglang(serving: ServingSpec, model_type: str, release: tuple[int, ...]) -> Speculation:
    """Return the speculation settings in SGLang's ``--speculative-*`` flags.

    Raises:
        PinnError: If the algorithm is not modelled, or the sizes are incompatible.
    """
    algorithm, draft = serving.speculative_config, serving.speculative_draft_model_path
    steps, branches = serving.speculative_num_steps, serving.speculative_eagle_topk
    draft_tokens = serving.speculative_num_draft_tokens
    methods = _words("sglang", "method")
    method = methods.get(algorithm.upper())
    if method is None:
        raise _not_modelled("--speculative-algorithm", algorithm, f"one of {', '.join(methods)}")
    if method == EAGLE and not draft:
        method = MTP
    if method == NGRAM:
        return _chain(NGRAM, (draft_tokens or SGLANG_NGRAM_TOKENS) - 1)
    if steps is None:
        steps, branches, draft_tokens = _sglang_sizes(method, model_type, release)
    branches, draft_tokens = branches or 1, draft_tokens or steps + 1
    most = 1 + sum(branches ** min(i + 1, 2) for i in range(steps))
    if not 2 <= draft_tokens <= most:
        raise PinnError(
            f"--speculative-num-draft-tokens {draft_tokens} does not fit a tree of {steps} steps "
            f"and {branches} branches: use 2 to {most}"
        )
    if draft_tokens > MOST_TOKENS:
        raise PinnError(
            f"--speculative-num-draft-tokens must be at most {MOST_TOKENS}, got {draft_tokens}"
        )
    own = "" if method == MTP else draft
    return Speculation(method, draft_tokens - 1, steps, branches, (), own)


def _not_modelled(what: str, got: str, known: str) -> PinnError:
    return PinnError(f"{what} is {got!r:.60}, which is not modelled: use {known}")


def _chain(method: str, tokens: int, draft: str = "") -> Speculation:
    """Return settings for a chain of draft tokens, with one draft model pass per token, if any."""
    if not 1 <= tokens <= MOST_TOKENS:
        raise PinnError(f"the number of draft tokens must be 1 to {MOST_TOKENS}, got {tokens}")
    return Speculation(method, tokens, 0 if method == NGRAM else tokens, 1, (), draft)


def _guessed(draft: str) -> str:
    """Return the speculation method that vLLM infers from a draft model's name."""
    if not draft:
        raise PinnError(
            "--speculative-config has neither the key method nor the key model: add one of the keys"
        )
    name = draft.lower()
    if name.strip("[]") == NGRAM:
        return NGRAM
    return EAGLE3 if "eagle3" in name else EAGLE if "eagle" in name else DRAFT_MODEL


def _asked(engine: str, config: str, example: str) -> dict[str, Any]:
    """Return the JSON object of a speculation flag, after checking that all its keys are known."""
    values = json_object(config, "--speculative-config", example)
    own = _words(engine, "key")
    known_keys = own | _words(engine, "no_effect")
    unknown = ", ".join(str(key) for key in values if key not in known_keys)
    if unknown:
        known = ", ".join(sorted(own))
        raise PinnError(f"--speculative-config has unknown keys ({unknown:.80}): use {known}")
    return values


def _text(values: Mapping[str, object], key: str) -> str:
    value = values.get(key) or ""
    if not isinstance(value, str):
        raise misfit(f"{key} of --speculative-config must be text", value)
    return value


def _count(values: Mapping[str, object], key: str, default: int | None = None) -> int:
    value = values.get(key, default)
    if value is None:
        raise PinnError(f"--speculative-config lacks the key {key}: add {key}")
    if isinstance(value, bool) or not is_finite(value) or value != int(value):
        raise misfit(f"{key} of --speculative-config must be a whole number", value)
    return int(value)
