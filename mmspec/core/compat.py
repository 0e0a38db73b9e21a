"""Every reach into transformers' internals: private methods, frames, replaced classes, and names that are not documented.

Each function says what it relies on and since which release; `tests/core/test_compat.py` holds a canary for each, which fails when a new
release of transformers no longer works as assumed here. No other module of mmspec may reach below transformers' documented interface.
"""
