"""The steps of `mmspec recommend` before a job: prepare, train, evaluate, assign, append."""
