"""An engine that serves a workload in simulated time."""
