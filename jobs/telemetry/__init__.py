"""Collect usage and progress of jobs once a second."""
