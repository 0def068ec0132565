"""Fleets: servers of several kinds behind one router; servers start, fail, and are scaled."""
