"""Catalogues on disk and in memory: columns, checks and files."""
