"""One module a command; `mmspec.cli` registers them."""
