"""A page of figures and tables of an evaluation."""
