"""Commands that run until they are stopped: `mmspec serve` and `mmspec ui`, and what they share."""
