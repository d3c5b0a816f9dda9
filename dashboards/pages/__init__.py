"""Page views, one file per group of pages. They combine access, actions and reads."""
