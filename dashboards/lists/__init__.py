"""Every list of the pages as one declaration: its columns, filters, order and rows."""
