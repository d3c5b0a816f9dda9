"""What pages show, as plain dicts: values() and a constant number of queries, whatever the number of rows."""
