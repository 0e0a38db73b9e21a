"""One generated sweep over the architectures of the installed transformers: see tests/sweep/run.py."""
