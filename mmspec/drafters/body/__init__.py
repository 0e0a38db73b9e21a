"""One configurable drafter body, and the published drafters that are settings of it."""
