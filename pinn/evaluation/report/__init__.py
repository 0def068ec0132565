"""Page of figures and tables of an evaluation."""
