"""Accelerators from vendors other than NVIDIA, which are refused for lack of measurements."""

from __future__ import annotations

import re

from pinn.common.files import data_folder, read_rows
from pinn.errors import PinnError


def vendor_of(text: str) -> str | None:
    """Return the accelerator vendor other than NVIDIA that a text mentions, or None.

    ``data/gpus/other_vendors.csv`` has whole-word patterns that identify each vendor.

    >>> vendor_of("MI300X"), vendor_of("AMD Instinct"), vendor_of("H100-SXM")
    ('AMD', 'AMD', None)
    """
    words = re.split(r"[^a-z0-9]+", text.lower())
    for row in read_rows(data_folder("gpus") / "other_vendors.csv"):
        patterns = row["words"].split()
        if any(re.fullmatch(pattern, word) for pattern in patterns for word in words):
            return str(row["vendor"])
    return None


def refuse_other_vendor(name: str, *texts: str) -> None:
    """Check that neither a name nor other text mentions an accelerator vendor other than NVIDIA.

    Args:
        name: Name of the accelerator as the user gave it.
        texts: Further text from its datasheet that may mention the vendor.

    Raises:
        PinnError: If the name or any other text mentions a vendor other than NVIDIA.
    """
    vendor = next((found for text in (name, *texts) if (found := vendor_of(text))), None)
    if vendor is not None:
        why = "predictions are based on measurements of NVIDIA GPUs"
        raise PinnError(
            f"{name!r:.80} is a GPU of {vendor}, which is not supported, since {why}: "
            "'pinn gpus' lists supported GPUs"
        )
