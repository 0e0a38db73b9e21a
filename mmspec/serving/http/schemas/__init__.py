"""Bodies of requests, checked by pydantic."""
