"""The error of engines and workers that take no more requests."""


class EngineClosed(RuntimeError):
    """Raised by `submit` after `close`."""
