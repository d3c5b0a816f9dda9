"""The lists of the pages, each declared by its columns, filters, order and rows."""
