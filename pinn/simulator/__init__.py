"""Discrete-event simulation of an inference engine that serves a workload."""
