"""The fields of a job, each declared once in `declared.py`. Pure, without Django, and cheap to import: REST, the pages
and `yard` read the same declarations."""
