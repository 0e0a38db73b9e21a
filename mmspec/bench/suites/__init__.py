"""Benchmarks of many runs each: `mmspec bench --suite NAME`."""
