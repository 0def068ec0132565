"""Does a file match the flags? Findings before a fit, each with what would explain it.

A fit to the wrong server looks fine: its constants take up the difference. So what can be known
beforehand is checked beforehand: the size of the KV cache, budget and seats, one model and one
server a file, the physical floor, units, clocks, and figures against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pinn.errors import PinnError


@dataclass(frozen=True)
class Finding:
    """Something that does not fit.

    Attributes:
        text: What was got and what was expected.
        remedy: The likely mistake: a flag that would explain it, or what to look at.
    """

    text: str
    remedy: str

    def __str__(self) -> str:
        """Both in one sentence."""
        return f"{self.text}: {self.remedy}"


def refuse(findings: Sequence[Finding], force: bool = False) -> tuple[str, ...]:
    """Stop before a fit to files that do not match their flags.

    Args:
        findings: Of :func:`~pinn.training.calibration.checks_traces.check_traces` or
            :func:`~pinn.training.calibration.checks_benchmarks.check_benchmarks`.
        force: Go on all the same.

    Returns:
        The findings as text, to be printed where the fit goes on.

    Raises:
        PinnError: If there are any and ``force`` is not given.
    """
    texts = tuple(map(str, findings))
    if texts and not force:
        raise PinnError(
            f"the files do not match the flags: {'; '.join(texts)}. If they do, go on with --force"
        )
    return texts
