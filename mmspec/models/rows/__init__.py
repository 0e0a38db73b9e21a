"""Rows of sessions that join and leave."""
