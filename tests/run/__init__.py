"""Tests of `mmspec.run`."""
