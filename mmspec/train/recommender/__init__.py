"""Recommenders trained on a shop's histories: target, drafters, the SASRec baseline, and how well they rank."""
