"""The decision core: frozen data in, decisions with reasons out. Pure: no Django, clock, files or network."""
