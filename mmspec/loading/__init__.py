"""Models by name, by folder or by hub name, for commands, jobs and recipes."""
