"""Files, devices, versions and weights on disk: what every room uses and no room is about."""
