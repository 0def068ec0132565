"""Intervals of a finished experiment anew, without training.

    python scripts/refit_intervals.py +experiment=release

Takes the overrides of the training. Its fits are found again on disk and nothing is trained; errors
of what they left out are calibrated once more, beside the experiment's checkpoint and, where that
is the published one, beside this, too.
"""

import sys
from pathlib import Path

from hydra import compose, initialize_config_dir

from pinn.coefficients.intervals import calibration_path, write_calibration
from pinn.common.files import conf_file, file_sha256
from pinn.errors import PinnError
from pinn.laboratory.folds import calibrate_folds, fold_networks
from pinn.laboratory.methods import make_repeatable, read_measured


def main(overrides: list[str]) -> None:
    """Refit, and say where it was written."""
    with initialize_config_dir(str(conf_file("train.yaml").parent), version_base="1.3"):
        config = compose("train", overrides=overrides)
    make_repeatable(config)
    measured = read_measured(config)
    path = Path(config.output_dir) / "checkpoint.safetensors"
    if not path.is_file():
        raise PinnError(f"no checkpoint at {path}: run python train.py {' '.join(overrides)} first")
    networks = fold_networks(config, measured, path.parent)
    found = calibrate_folds(config, measured, networks, path)
    published = Path(config.publish or "") / "pinn.safetensors"
    for target in (path, published):
        if target.is_file() and file_sha256(target) == found.checkpoint_sha256:
            write_calibration(found, calibration_path(target))
            print(calibration_path(target))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except PinnError as error:
        raise SystemExit(f"error: {error}") from error
