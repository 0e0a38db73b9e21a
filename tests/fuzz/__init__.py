"""A fuzzer of the command line and of the public calls; its seed is fixed, so that every run tries the same requests."""
