"""Rows in, Plotly figures out. Pure: plain dicts that Plotly's schema accepts (the tests ask it), no Django."""
