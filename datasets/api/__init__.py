"""Data over REST."""
