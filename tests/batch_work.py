"""Costs and batch sums from which step features are computed without padding."""

from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import step_costs


def batch_work(deployment, batches):
    """Return a deployment's costs (shape ``[1]``) and each batch's sums (shape ``[batches]``)."""
    return step_costs([deployment]), sum_batches(batches, deployment.model.window_tokens)
