"""Every configuration composes, and an unusable one is refused in one line."""

import dataclasses
import re
import runpy
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from configurations import CONF, configure

from pinn.errors import PinnError
from pinn.evaluation.config import CHOICES, ExperimentConfig, choices

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
#: Folders without choices of a training: experiments, and the settings of ``pinn plan``.
OTHERS = {"experiment", "plan"}
FILES = sorted(path for path in CONF.glob("*/*.yaml") if path.parent.name not in OTHERS)
GROUPS = [f"{path.parent.name}={path.stem}" for path in FILES]
GROUPS += [f"{group}={name}" for group, name in CHOICES]
SETTINGS = ("network", "fit", "run_fit", "trainer")


def check(config):
    """Check that values have their types, and that defaults are those of the settings' classes."""
    assert isinstance(config, ExperimentConfig)
    assert config.output_dir == f"results/{config.experiment_name}"
    for name in SETTINGS:
        settings = getattr(config, name)
        assert settings == type(settings)()
    assert config.kernels.distillation == type(config.kernels.distillation)()
    assert config.workers.workers().count == config.workers.count


def test_plain_training_composes():
    check(configure())


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_composes(experiment):
    config = configure(f"+experiment={experiment}")
    assert config.experiment_name == experiment
    check(config)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_first_comment_of_an_experiment_is_its_command(experiment):
    package, command, *_ = (CONF / "experiment" / f"{experiment}.yaml").read_text().splitlines()
    assert package == "# @package _global_"
    assert command == f"# python train.py +experiment={experiment}"


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_holds_overrides_only(experiment):
    """Check that each value of an experiment differs from what is composed without it."""
    text = yaml.safe_load((CONF / "experiment" / f"{experiment}.yaml").read_text())
    plain = dataclasses.asdict(configure())
    for key, value in text.items():
        if key == "defaults":
            continue
        both = [(value[k], plain[key][k]) for k in value] if isinstance(value, dict) else []
        assert all(a != b for a, b in both or [(value, plain[key])]), key


@pytest.mark.parametrize("choice", GROUPS)
def test_every_choice_of_every_group_composes(choice):
    check(configure(choice, *(["data.source=own.csv"] if choice == "data=own" else [])))


def test_expected_experiments_are_there():
    assert {"release", "moe_ep", "lomo", "logo"} <= set(EXPERIMENTS)


def test_the_recipe_of_the_released_checkpoint():
    """Check the values that the released checkpoint was trained with."""
    config = configure("+experiment=release")
    assert (config.run_fit.rounds, config.fit.steps, config.fit.learning_rate) == (5, 600, 0.03)
    assert (config.network.hidden, config.network.depth) == (128, 2)
    kernels = config.kernels.settings
    assert (kernels.synthetic, kernels.catalog, len(kernels.gpus)) == (32000, 6000, 16)


def test_help_has_a_line_for_every_experiment_and_choice():
    lines = choices().splitlines()
    wanted = [*(f"+experiment={name}" for name in EXPERIMENTS), *GROUPS]
    for choice in wanted:
        (line,) = (line for line in lines if line.split()[:1] == [choice])
        assert len(line.split()) > 3, line


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """Return a function that runs ``train.py`` and returns its stdout; stderr if it fails."""
    monkeypatch.chdir(tmp_path)

    def run(*overrides, code=None):
        monkeypatch.setattr(sys, "argv", ["train.py", *overrides, "hydra/hydra_logging=none"])
        with pytest.raises(SystemExit) if code is not None else nullcontext() as end:
            runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
        return str(end.value.code) if code else capsys.readouterr().out

    return run


def test_help_is_printed(train):
    shown = train("--help", code=0)
    assert "+experiment=release" in shown
    assert "kernels=newer" in shown


def test_a_fault_is_one_line_and_status_1(tmp_path):
    command = [sys.executable, str(ROOT / "train.py"), "fit.steps=abc"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "fit.steps" in line


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("fit.steps=abc", "fit.steps"),
        ("fit.step=5", "fit.step"),
        ("networks=tiny", "networks"),
        ("evaluation=all", "leave_one_model_out"),
        ("trainer.accelerator=gpu", "trainer.accelerator=cpu"),
        ("data.source=missing.csv", "data.source is missing.csv, which does not exist"),
        ("runs.path=missing.csv", "runs.path is missing.csv, which does not exist"),
        ("network.hidden=-1", "hidden"),
        ("evaluation.held_out=gpt-5", "openai/gpt-oss-120b"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(override, named, train, source, tmp_path):
    given = ["runs.path=null", f"data.source={source}", f"output_dir={tmp_path / 'out'}"]
    (line,) = train(*given, override, code=1).splitlines()
    assert line.startswith("error: ")
    assert named in line
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_table_with_other_columns_is_refused_in_one_line(train, tmp_path):
    (tmp_path / "own.csv").write_text("model,gpu\nopenai/gpt-oss-120b,h100_sxm\n")
    (tmp_path / "out").mkdir()
    for data in ("own", "silicon"):
        given = [f"data={data}", f"data.source={tmp_path / 'own.csv'}", "runs.path=null"]
        (line,) = train(*given, f"output_dir={tmp_path / 'out'}", code=1).splitlines()
        assert re.match(r"error: .*own\.csv .*lacks the column", line), line
        assert "docs/training.md" in line


@pytest.mark.parametrize("steps", ["abc", "1.5", "null"])
def test_values_have_the_type_of_their_setting(steps):
    with pytest.raises(PinnError, match=r"fit\.steps"):
        configure(f"fit.steps={steps}")


def test_every_job_of_a_sweep_has_a_folder_of_its_own(train, source, tmp_path):
    small = (
        "kernels=off", f"data.source={source}", "runs.path=null", "evaluation=none",
        "network.hidden=4", "fit.steps=1", "trainer.progress=false",
    )  # fmt: skip
    train("-m", "seed=0,1", *small, f"output_dir={tmp_path}")
    made = {path.parent for path in tmp_path.rglob("checkpoint.safetensors")}
    assert len(made) == 2
    first, second = ((folder / "checkpoint.safetensors").read_bytes() for folder in made)
    assert first != second
