"""Predicts how fast published schedules of drafting and verifying are on given hardware: exact models and simulators, one a module."""
