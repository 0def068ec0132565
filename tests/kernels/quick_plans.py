"""Training plans that take about a second."""

from dataclasses import replace

from pinn.kernels.surrogates import OPERATORS

QUICK = {o.name: replace(o.plan, rows=6000, epochs=6, batch=512, width=24) for o in OPERATORS}
