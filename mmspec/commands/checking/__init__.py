"""`mmspec check`, and what it runs for each kind of model."""
