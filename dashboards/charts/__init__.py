"""Rows in, Plotly figures out. Pure: no Django, no clock. Plotly is imported on the first figure (templates.py)."""
