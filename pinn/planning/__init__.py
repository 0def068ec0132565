"""Plans of servers for a load: candidates, their simulations, and the certainty of a plan."""
