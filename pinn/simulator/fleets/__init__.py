"""Fleets: servers of several kinds behind one router, that start, fail and scale."""
