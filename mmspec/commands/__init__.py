"""One module a command; `mmspec.cli` wires them."""
