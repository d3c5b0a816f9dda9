"""Pages of data."""
