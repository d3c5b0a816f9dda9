"""Build Plotly figures from rows. Pure: no Django, no clock. Plotly is imported for the first figure
(templates.py)."""
