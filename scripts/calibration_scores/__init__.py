"""Evaluation data of ``scripts/score_calibration.py``: public steps, deployments, serving runs."""
