"""Where draft tokens come from: one published idea, one file, named after it."""
