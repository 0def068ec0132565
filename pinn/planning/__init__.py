"""Plans for a load: candidates to rent, their simulations, and the certainty of a plan."""
