"""Data sets of ``scripts/score_calibration.py``: public steps, deployments, serving runs."""
