"""Accelerators of vendors other than NVIDIA, for which there are no measurements."""

from __future__ import annotations

import re

from pinn.common.files import data_folder, read_rows
from pinn.errors import PinnError


def vendor_of(text: str) -> str | None:
    """Return the vendor other than NVIDIA that a text names; None without one.

    ``data/gpus/other_vendors.csv`` has the words of each, as patterns of whole words.

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
    """Refuse an accelerator of another vendor, which would be timed as an NVIDIA card.

    Args:
        name: Name that the user gave.
        texts: Text of its datasheet that may name the vendor, too.

    Raises:
        PinnError: If the name or a text names one.
    """
    vendor = next((found for text in (name, *texts) if (found := vendor_of(text))), None)
    if vendor is not None:
        why = "predictions are based on measurements of NVIDIA GPUs"
        raise PinnError(
            f"{name!r:.80}: GPUs of {vendor} are not supported, because {why}: "
            "'pinn gpus' lists supported ones"
        )
