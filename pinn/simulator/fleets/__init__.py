"""Fleets: servers of several kinds behind one router, with start-up, failures and autoscaling."""
