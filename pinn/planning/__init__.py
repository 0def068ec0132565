"""What to rent for a load: candidates, their simulations, and how sure a plan is."""
