"""Template tags of data."""
