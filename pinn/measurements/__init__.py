"""Measurements of servers and kernels: readers of traces and benchmark files, and a profiler."""
