"""The sections of `mmspec demo`."""
