"""Where guesses come from: one published idea, one file, named after it."""
