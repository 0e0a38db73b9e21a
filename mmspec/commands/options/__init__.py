"""How a command line is read: its options as a validated config, and shell completion."""
