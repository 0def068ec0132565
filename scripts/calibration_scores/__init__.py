"""What ``scripts/score_calibration.py`` scores: public steps, deployments, serving runs."""
