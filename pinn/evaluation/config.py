"""Typed configuration of an experiment: the schema of ``conf/``, and checks on its values.

The sections ``network``, ``fit``, ``run_fit``, ``alpha_head``, ``kernels.settings``,
``kernels.distillation`` and ``trainer`` have the defaults of their classes. All other values are
set in ``conf/``.
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
from pinn.training.alpha_head import AlphaHeadSettings
from pinn.training.distillation import DistillationSettings
from pinn.training.kernel_data import KernelSettings
from pinn.training.run_scalars import RunFitSettings
from pinn.training.serving_fit import ServingFitSettings
from pinn.training.trainer import TrainerSettings


@dataclass(frozen=True)
class DataSource:
    """Source of the measured deployments on which an experiment trains.

    Attributes:
        _target_: Import path of a function of ``target`` and ``source`` that writes the table of
            measured deployments.
        target: Parquet file that the function writes.
        source: File that the function reads; None for the file in an installed package.
    """

    _target_: str
    target: str
    source: str | None


@dataclass(frozen=True)
class KernelLearning:
    """Settings for training on measured kernels.

    Attributes:
        enabled: Whether to train the network on kernels; if false, train on measured deployments
            only.
        settings: Sources of kernel measurements.
        distillation: Settings for training the network on step times summed from kernels.
    """

    enabled: bool
    settings: KernelSettings = field(default_factory=KernelSettings)
    distillation: DistillationSettings = field(default_factory=DistillationSettings)


@dataclass(frozen=True)
class RunsSource:
    """Source of the serving runs on which an experiment trains.

    Attributes:
        path: CSV of serving runs; None for no runs.
        model_configs: Folder of ``<model>/config.json`` for models that the catalog lacks.
    """

    path: str | None
    model_configs: str | None


@dataclass(frozen=True)
class EvaluationSettings:
    """Splits, groups, and the model or GPU to hold out in an evaluation.

    Attributes:
        splits: Split methods, keys of ``pinn.training.data.splits.SPLITS``.
        groups: Names of groups of rows whose errors the tables also list separately.
        held_out: Single model or GPU to hold out, instead of ``splits``.
    """

    splits: list[str]
    groups: list[str]
    held_out: str | None = None


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of processes that train folds; see :class:`pinn.common.workers.Workers`."""

    count: int
    backend: str = Workers.backend
    address: str | None = Workers.address

    def workers(self) -> Workers:
        """Return the worker processes that these settings describe."""
        return Workers(self.backend, self.count, self.address)


@dataclass(frozen=True)
class ReportSettings:
    """Settings of the evaluation suite's page.

    Attributes:
        checkpoint: Checkpoint whose intervals and cross-validation results are shown; None for the
            checkpoint that commands use by default.
        images: Folder for copies of the page's figures that the README shows.
    """

    checkpoint: str | None = None
    images: str | None = None


@dataclass(frozen=True)
class ExperimentConfig:
    """Configuration of one experiment, as composed from ``conf/train.yaml``.

    Attributes:
        entry: Function that runs the experiment with this configuration.
        experiment_name: Name of the experiment and of its results folder.
        output_dir: Folder of results.
        seed: Random seed for every random choice.
        threads: Number of torch threads.
        final_fit: Whether to fit to all rows after the evaluation and save a checkpoint.
        folds: Folder of cached networks of cross-validation folds, shared by experiments; None for
            a folder below ``output_dir``.
        publish: Folder that the checkpoint and its tables are copied to; None for no copy.
        data: Source of measured deployments.
        network: Size and bounds of the network.
        kernels: Settings for training on measured kernels.
        fit: Settings for training the network on measured deployments alone.
        trainer: Devices and progress bar.
        evaluation: Splits and groups of the evaluation.
        runs: Source of serving runs to train on.
        run_fit: Settings for fitting calibration factors and request coefficients (alpha) to
            measured deployments and runs.
        alpha_head: Settings for fitting the differences of alpha between deployments.
        workers: Number and type of processes that fit folds in parallel.
        fast: Whether to skip all fits and score only predictions on disk (evaluation suite only).
        shipped: Splits whose predictions ``fast`` reads from the published checkpoint (suite only).
        cells_from: Folders of experiments whose finished predictions are reused (suite only).
        report: Settings of the page (suite only).
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
    alpha_head: AlphaHeadSettings = field(default_factory=AlphaHeadSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    fast: bool = False
    shipped: list[str] = field(default_factory=list)
    cells_from: list[str] = field(default_factory=list)
    report: ReportSettings = field(default_factory=ReportSettings)

    def check(self) -> None:
        """Check that the configured files and devices exist before anything starts.

        Raises:
            PinnError: If a file or device is missing; the message gives the key and a remedy.
        """
        for key, path in (
            ("data.source", self.data.source),
            ("runs.path", self.runs.path),
            ("runs.model_configs", self.runs.model_configs),
        ):
            if path is not None and not Path(path).exists():
                raise PinnError(
                    f"{key} is {path}, which does not exist: give the path of an existing file"
                )
        self.trainer.check()


#: Classes whose defaults are the values of a configuration choice, by (configuration group, name of
#: the choice).
CHOICES: dict[tuple[str, str], type] = {
    ("network", "tiny"): NetworkSettings,
    ("fit", "serving"): ServingFitSettings,
    ("trainer", "cpu"): TrainerSettings,
}


def register() -> None:
    """Register the schema of ``conf/train.yaml`` with Hydra."""
    store = ConfigStore.instance()
    store.store(name="schema", node=_schema(ExperimentConfig))
    for (group, name), settings in CHOICES.items():
        store.store(group=group, name=name, node=_schema(settings))
    OmegaConf.register_new_resolver("pinn_choices", choices, replace=True)


def typed(config: DictConfig) -> ExperimentConfig:
    """Return a composed Hydra configuration as a typed object.

    Raises:
        PinnError: If a value is missing or invalid.
    """
    with one_line_errors():
        return cast(ExperimentConfig, OmegaConf.to_object(config))


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """Compose a configuration from ``conf/train.yaml`` and overrides.

    Raises:
        PinnError: If an override does not fit the schema.
    """
    register()
    conf = str(conf_file("train.yaml").parent)
    with one_line_errors(), initialize_config_dir(conf, version_base="1.3"):
        return compose("train", overrides=list(overrides))


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Convert errors of Hydra and OmegaConf into a one-line :class:`PinnError` with a remedy."""
    try:
        yield
    except PinnError as error:
        # A settings class rejected a value. Keep only the first line of its message, because
        # OmegaConf appends further lines.
        raise PinnError(str(error).partition("\n")[0]) from error
    except (HydraException, OmegaConfBaseException) as error:
        lines = [str(error)]
        if isinstance(error.__cause__, OmegaConfBaseException):
            lines.append(str(error.__cause__).partition("\n")[0])
        reason = " ".join(" ".join(lines).partition("Config search path")[0].split())
        remedy = (
            "run 'python train.py --help' to list the choices, or with '--cfg job' to list "
            "all keys and values"
        )
        raise PinnError(f"{reason}: {remedy}") from error


def choices() -> str:
    """List all experiments and all options of each configuration group, one per line."""
    files = conf_file("train.yaml").parent.glob("*/*.yaml")
    found = {
        f"{path.parent.name}={path.stem}": _described(path)
        for path in files
        if path.parent.name != "plan"  # Files in conf/plan configure plans, not experiments.
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
    """Return the first comment in a YAML file that is neither a directive nor a command."""
    comments = (line[2:] for line in path.read_text().splitlines() if line.startswith("# "))
    return next(line for line in comments if not line.startswith(("@", "python ")))


def _schema(settings: type) -> DictConfig:
    """Return the fields of a settings class as a typed configuration that accepts overrides.

    Frozen classes are made writable, because they would reject overrides.
    """
    node: DictConfig = OmegaConf.structured(settings)
    OmegaConf.set_readonly(node, None)
    for name, of in get_type_hints(settings).items():
        if is_dataclass(of):
            node[name] = _schema(cast(type, of))
    return node
