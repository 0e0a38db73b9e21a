"""Generation configs and their processors."""
