"""The checks of `mmspec check`."""
