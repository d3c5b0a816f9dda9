"""REST views of data."""
