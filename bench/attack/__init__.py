"""Attacks on a running instance, and the response times of other users meanwhile."""
