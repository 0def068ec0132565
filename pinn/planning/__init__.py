"""Plans of servers for a load: candidates, their simulations, and the uncertainty of plans."""
