"""The project's configuration, as ``train.py`` composes it."""

from __future__ import annotations

from pathlib import Path

from pinn.evaluation.config import ExperimentConfig, compose_config, typed

CONF = Path(__file__).parents[1] / "conf"


def configure(*overrides: str) -> ExperimentConfig:
    """The configuration with overrides."""
    return typed(compose_config(overrides))
