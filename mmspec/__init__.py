"""mmspec."""
