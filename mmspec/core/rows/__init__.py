"""Rows that join and leave a running generation."""
