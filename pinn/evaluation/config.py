"""The configuration of an experiment, typed: the schema of ``conf/``, and what it refuses.

Sections that are settings of a class (``network``, ``fit``, ``run_fit``, ``kernels.settings``,
``kernels.distillation``, ``trainer``) have its defaults; ``conf/`` gives every other value.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import cast, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pinn.common.files import conf_file
from pinn.common.workers import Workers
from pinn.errors import PinnError
from pinn.surrogate.architecture import NetworkSettings
from pinn.training.distillation import DistillationSettings
from pinn.training.kernel_data import KernelSettings
from pinn.training.run_scalars import RunFitSettings
from pinn.training.serving_fit import ServingFitSettings
from pinn.training.trainer import TrainerSettings


@dataclass(frozen=True)
class DataSource:
    """Where measured deployments come from.

    Attributes:
        _target_: Function of ``target`` and ``source`` that writes the table of observations.
        target: Parquet file that it writes.
        source: File that it reads; None for the one that comes with a package.
    """

    _target_: str
    target: str
    source: str | None


@dataclass(frozen=True)
class KernelLearning:
    """Learning from measured kernels.

    Attributes:
        enabled: Whether kernels train the network; else measured deployments alone do.
        settings: Where kernels come from.
        distillation: How composed steps train the network.
    """

    enabled: bool
    settings: KernelSettings = field(default_factory=KernelSettings)
    distillation: DistillationSettings = field(default_factory=DistillationSettings)


@dataclass(frozen=True)
class RunsSource:
    """Serving runs.

    Attributes:
        path: Their CSV; None for none.
        model_configs: Folder of ``<model>/config.json`` for models that the catalogue lacks.
    """

    path: str | None
    model_configs: str | None


@dataclass(frozen=True)
class EvaluationSettings:
    """What is held out and scored.

    Attributes:
        splits: Kinds of split, keys of ``pinn.training.data.splits.SPLITS``.
        groups: Groups of rows with lines of their own in the tables.
        held_out: One model or GPU to hold out alone, in place of ``splits``.
    """

    splits: list[str]
    groups: list[str]
    held_out: str | None = None


@dataclass(frozen=True)
class WorkerSettings:
    """Where fits run; see :class:`pinn.common.workers.Workers`."""

    count: int
    backend: str = Workers.backend
    address: str | None = Workers.address

    def workers(self) -> Workers:
        """Make the workers."""
        return Workers(self.backend, self.count, self.address)


@dataclass(frozen=True)
class ReportSettings:
    """The page of the evaluation suite.

    Attributes:
        checkpoint: Whose folds and intervals are shown; None for the one every command finds.
        images: Folder for those of the page's pictures that the README shows.
    """

    checkpoint: str | None = None
    images: str | None = None


@dataclass(frozen=True)
class ExperimentConfig:
    """One experiment, as ``conf/train.yaml`` composes it.

    Attributes:
        entry: Function that runs it, given this configuration.
        experiment_name: Names the folder of results.
        output_dir: Folder of results.
        seed: Seed of every random choice.
        threads: Threads of torch.
        final_fit: Whether to fit on all rows after the evaluation and save a checkpoint.
        folds: Folder in which trainings are remembered, shared by experiments; None for one below
            ``output_dir``.
        publish: Folder that the checkpoint and its tables are copied to; None for no copy.
        data: Measured deployments.
        network: Size and bounds of the network.
        kernels: Learning from measured kernels.
        fit: How measured deployments alone train the network.
        trainer: Devices and progress bar.
        evaluation: What is held out and scored.
        runs: Serving runs to train on.
        run_fit: How measured deployments and runs set the global scalars and alpha.
        workers: Folds at a time.
        fast: Suite only: fit nothing, score what is on disk.
        shipped: Suite only: splits whose predictions ``fast`` takes from the published checkpoint.
        cells_from: Suite only: folders of experiments whose finished predictions are taken over.
        report: Suite only: its page.
    """

    entry: str
    experiment_name: str
    output_dir: str
    seed: int
    threads: int
    final_fit: bool
    folds: str | None
    publish: str | None
    data: DataSource
    kernels: KernelLearning
    evaluation: EvaluationSettings
    runs: RunsSource
    workers: WorkerSettings
    network: NetworkSettings = field(default_factory=NetworkSettings)
    fit: ServingFitSettings = field(default_factory=ServingFitSettings)
    run_fit: RunFitSettings = field(default_factory=RunFitSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    fast: bool = False
    shipped: list[str] = field(default_factory=list)
    cells_from: list[str] = field(default_factory=list)
    report: ReportSettings = field(default_factory=ReportSettings)

    def check(self) -> None:
        """Refuse files and devices that are not there, before anything starts.

        Raises:
            PinnError: With the key and a remedy.
        """
        for key, path in (
            ("data.source", self.data.source),
            ("runs.path", self.runs.path),
            ("runs.model_configs", self.runs.model_configs),
        ):
            if path is not None and not Path(path).exists():
                raise PinnError(f"{key}={path}: no such file: give the path of an existing one")
        self.trainer.check()


#: Choices whose values are the defaults of a class: (group, name) -> the class.
CHOICES: dict[tuple[str, str], type] = {
    ("network", "tiny"): NetworkSettings,
    ("fit", "serving"): ServingFitSettings,
    ("trainer", "cpu"): TrainerSettings,
}


def register() -> None:
    """Make the schema known to Hydra, as ``conf/train.yaml`` expects it."""
    store = ConfigStore.instance()
    store.store(name="schema", node=_schema(ExperimentConfig))
    for (group, name), settings in CHOICES.items():
        store.store(group=group, name=name, node=_schema(settings))
    OmegaConf.register_new_resolver("pinn_choices", choices, replace=True)


def typed(config: DictConfig) -> ExperimentConfig:
    """Return a composed configuration as the object that it describes.

    Raises:
        PinnError: If a value is missing or is refused by the class that it is for.
    """
    with one_line_errors():
        return cast(ExperimentConfig, OmegaConf.to_object(config))


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """Compose ``conf/train.yaml`` with overrides.

    Raises:
        PinnError: If one does not fit.
    """
    register()
    conf = str(conf_file("train.yaml").parent)
    with one_line_errors(), initialize_config_dir(conf, version_base="1.3"):
        return compose("train", overrides=list(overrides))


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into a :class:`PinnError` of one line with a remedy."""
    try:
        yield
    except PinnError as error:  # refused by a class; OmegaConf adds lines about it
        raise PinnError(str(error).partition("\n")[0]) from error
    except (HydraException, OmegaConfBaseException) as error:
        lines = [str(error)]
        if isinstance(error.__cause__, OmegaConfBaseException):
            lines.append(str(error.__cause__).partition("\n")[0])
        reason = " ".join(" ".join(lines).partition("Config search path")[0].split())
        remedy = "'python train.py --help' lists choices, '--cfg job' every key with its value"
        raise PinnError(f"{reason}: {remedy}") from error


def choices() -> str:
    """Return every experiment and every choice of every group, a line each."""
    files = conf_file("train.yaml").parent.glob("*/*.yaml")
    found = {
        f"{path.parent.name}={path.stem}": _described(path)
        for path in files
        if path.parent.name != "plan"  # no choices of an experiment
    }
    found |= {
        f"{g}={name}": (of.__doc__ or "").partition("\n")[0] for (g, name), of in CHOICES.items()
    }
    experiments = {
        f"+{key}": found.pop(key) for key in list(found) if key.startswith("experiment=")
    }
    return "\n".join(["Experiments:", *_lines(experiments), "", "Choices:", *_lines(found)])


def _lines(choices: dict[str, str]) -> list[str]:
    width = max(map(len, choices))
    return [f"  {choice:{width}}  {choices[choice]}" for choice in sorted(choices)]


def _described(path: Path) -> str:
    """First comment that is neither a directive nor a command."""
    comments = (line[2:] for line in path.read_text().splitlines() if line.startswith("# "))
    return next(line for line in comments if not line.startswith(("@", "python ")))


def _schema(settings: type) -> DictConfig:
    """The fields of a class as a typed configuration; frozen classes would refuse overrides."""
    node: DictConfig = OmegaConf.structured(settings)
    OmegaConf.set_readonly(node, None)
    for name, of in get_type_hints(settings).items():
        if is_dataclass(of):
            node[name] = _schema(cast(type, of))
    return node
