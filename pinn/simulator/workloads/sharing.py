"""Which earlier request a request shares its first tokens with."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int


def share_prompts(
    group: Int[np.ndarray, " n"],
    prefix_tokens: Int[np.ndarray, " n"],
    prompt: Int[np.ndarray, " n"],
    prompt_tokens: Int[np.ndarray, " n"],
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Donors and shared tokens of requests whose prompts repeat or begin alike.

    Args:
        group: Group whose prompts share their first tokens; -1 for none.
        prefix_tokens: How many tokens the request shares with its group.
        prompt: Prompt identity: equal numbers are equal prompts, -1 is unique.
        prompt_tokens: Prompt lengths.

    Returns:
        Index of the donor (-1 for none) and the number of shared tokens.
    """
    donor = np.full(len(group), -1, np.int64)
    shared = np.zeros(len(group), np.int64)
    in_group = _first_of(group)
    donor[:] = in_group
    shared[in_group >= 0] = np.minimum(prefix_tokens, prefix_tokens[in_group])[in_group >= 0]
    same = _first_of(prompt)
    donor = np.where(same >= 0, same, donor)
    shared = np.where(same >= 0, prompt_tokens, shared)
    return donor, shared


def _first_of(label: np.ndarray) -> np.ndarray:
    """Index of the first entry with the same label; -1 for the first itself and for label -1."""
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    origin = first[inverse]
    return np.where((label >= 0) & (origin < np.arange(len(label))), origin, -1)
