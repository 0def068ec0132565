"""How far predictions can be trusted: intervals, and distances to what was measured."""
