"""Template tags for pages of data."""
