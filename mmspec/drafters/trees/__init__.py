"""Draft trees: static templates, planners, and searches."""
