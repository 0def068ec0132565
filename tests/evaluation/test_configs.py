"""Every configuration composes, and what it describes can be made."""

import pytest
from configurations import CONF, configure
from hydra.utils import instantiate
from omegaconf import OmegaConf

from pinn.evaluation.methods import kernel_settings

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
#: Folders that hold no choices of a training: experiments, and what ``pinn plan`` tries.
OTHERS = {"experiment", "plan"}
CHOICES = sorted(
    f"{path.parent.name}={path.stem}"
    for path in CONF.glob("*/*.yaml")
    if path.parent.name not in OTHERS
)


def check(config):
    """Everything resolves, and every part with a target that reads nothing can be made."""
    OmegaConf.to_container(config, resolve=True)
    assert config.output_dir == f"results/{config.experiment_name}"
    for name in ("network", "fit", "run_fit", "workers"):
        assert instantiate(config[name]) is not None
    assert callable(instantiate(config.trainer))


def test_plain_training_composes():
    check(configure())


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_composes(experiment):
    config = configure(f"+experiment={experiment}")
    assert config.experiment_name == experiment
    check(config)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_says_how_it_is_run(experiment):
    text = (CONF / "experiment" / f"{experiment}.yaml").read_text()
    assert f"# python train.py +experiment={experiment}" in text


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_of_every_group_composes(choice):
    check(configure(choice))


def test_expected_experiments_are_there():
    assert {"release", "moe_ep", "lomo", "logo"} <= set(EXPERIMENTS)


def test_kernel_settings_can_be_the_key_of_a_cache():
    assert hash(kernel_settings(configure())) == hash(kernel_settings(configure()))
