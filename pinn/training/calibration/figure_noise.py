"""How far figures of a benchmark are from any coefficients; apart, as it needs no simulator."""

#: Relative standard deviation of what the coefficients cannot explain of a figure: the largest that
#: predict other rows of measured deployments as well as the best, within one standard error
#: (scripts/score_calibration.py).
TIME_NOISE, TTFT_NOISE = 0.03, 0.09
