"""Block drafters: one forward of a small net fills a whole block of draft tokens."""
