"""Browser pages of data."""
