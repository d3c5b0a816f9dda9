"""Jobs over REST."""
