"""Training plans of a second or so."""

from dataclasses import replace

from pinn.kernels.surrogates import OPERATORS

QUICK = {o.name: replace(o.plan, rows=6000, epochs=6, batch=512, width=24) for o in OPERATORS}
