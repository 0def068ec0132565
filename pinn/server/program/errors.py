"""What stops a measurement, in one line for the user."""

from __future__ import annotations


class MeasuringError(Exception):
    """Something that the user can correct: what was got, and what to do."""
