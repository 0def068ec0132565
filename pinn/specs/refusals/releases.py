"""Models and ways to draft that a release does not have."""

from __future__ import annotations

import csv
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pinn.specs.data_folder import data_folder
from pinn.specs.engine_defaults import release
from pinn.specs.refusals.refusal import Refusal, release_of, runs, version_of
from pinn.specs.serving import SGLANG, VLLM
from pinn.specs.speculation import DRAFT_MODEL, MTP, NGRAM

if TYPE_CHECKING:
    from pinn.specs.deployment import Deployment


class Absence(NamedTuple):
    """What releases up to ``absent`` do not have; ``since`` is empty where none has it."""

    architecture: str
    absent: str
    since: str


@cache
def absences() -> dict[tuple[str, str, str], Absence]:
    """Engine, part (``model`` or ``mtp``) and model type to the releases without it.

    ``scripts/read_architectures.py`` reads them from the engines' source.
    """
    path = data_folder("engines") / "architectures.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (row["engine"], row["part"], row["model_type"]): Absence(
                row["architecture"], row["absent"], row["since"]
            )
            for row in csv.DictReader(file)
        }


def architecture(d: Deployment) -> Refusal | None:
    """A release that is named knows the model; without a name any release is meant."""
    found = absences().get((d.serving.engine, "model", d.model.model_type))
    if found is None or not d.serving.engine_version or release_of(d) > release(found.absent):
        return None
    engine = d.serving.engine
    file = "srt/models" if engine == SGLANG else "vllm/model_executor/models/registry.py"
    return Refusal(
        f"{engine} {version_of(d)} has no {found.architecture}, the architecture of {d.model.name}",
        f"use {found.since} or newer" if found.since else "no release that was read has it",
        f"{engine} {found.absent} {file}",
    )


def prediction_layer(d: Deployment) -> Refusal | None:
    """Multi-token prediction drafts with a layer that the model has."""
    drafts = d.recipe.speculation
    if drafts is None or drafts.method != MTP or d.serving.engine != VLLM:
        return None
    found = absences().get((VLLM, "mtp", d.model.model_type))
    if found is None:
        return None
    named = bool(d.serving.engine_version)
    if found.since and (not named or release_of(d) > release(found.absent)):
        return None
    return Refusal(
        f"vllm {version_of(d)} has no layer of {d.model.name} that predicts further tokens",
        f"use {found.since} or newer" if found.since else "draft with a model or by n-grams",
        f"vllm {found.absent} vllm/config/speculative.py",
    )


def draft_model(d: Deployment) -> Refusal | None:
    """A model that drafts: in vLLM from 0.15.0, with the target's vocabulary."""
    drafts = d.recipe.speculation
    if drafts is None or drafts.method != DRAFT_MODEL or d.draft is None or not runs(d, VLLM):
        return None
    if runs(d, VLLM, below="0.15"):
        return Refusal(
            f"vllm {version_of(d)} does not draft with a model",
            "use 0.15.0 or newer, or n-grams, EAGLE or MTP",
            f"vllm {version_of(d)} vllm/config/speculative.py: not supported yet",
        )
    own, target = d.draft.model.vocab_size, d.model.vocab_size
    if own == target:
        return None
    return Refusal(
        f"the draft {d.draft.model.name} has a vocabulary of {own:,}, {d.model.name} one of "
        f"{target:,}",
        "use a draft of the same family",
        f"vllm {version_of(d)} vllm/config/speculative.py: verify_equal_vocab_size_if_draft_model",
    )


def drafts_beside_replicas(d: Deployment) -> Refusal | None:
    """SGLang drafts by a model or n-grams only without attention data parallelism."""
    drafts = d.recipe.speculation
    if drafts is None or not runs(d, SGLANG) or not d.serving.enable_dp_attention:
        return None
    if drafts.method not in (DRAFT_MODEL, NGRAM):
        return None
    return Refusal(
        f"--speculative-algorithm {d.serving.speculative_config} does not go with "
        "--enable-dp-attention",
        "leave one out",
        f"sglang {version_of(d)} srt/server_args.py (from 0.5.13 arg_groups/speculative_hook.py)",
    )
