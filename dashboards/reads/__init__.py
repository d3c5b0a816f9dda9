"""Data for pages as plain dicts, with a constant number of queries for any number of rows."""
