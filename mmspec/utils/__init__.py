"""Files, devices, versions and weights on disk, for all packages."""
