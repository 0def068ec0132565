"""How far figures of a benchmark are from any coefficients; apart, as it needs no simulator."""

#: Relative standard deviation of what the coefficients cannot explain of a figure: those whose 90 %
#: intervals do best on other rows of measured deployments (scripts/score_calibration.py).
TIME_NOISE, TTFT_NOISE = 0.03, 0.09
