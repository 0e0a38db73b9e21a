"""Losses and tables for training models of continuous tokens and their drafts."""
