"""The project's configuration, as ``train.py`` composes it."""

from __future__ import annotations

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

CONF = Path(__file__).parents[1] / "conf"


def configure(*overrides: str) -> DictConfig:
    """The configuration with overrides."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=list(overrides))
