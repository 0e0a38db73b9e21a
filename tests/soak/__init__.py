"""Long runs that watch what is left behind. See `python -m tests.soak --help`."""
