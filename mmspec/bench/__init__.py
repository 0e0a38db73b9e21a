"""Benchmarks, checks and reports: mmspec and its peers in one process."""
