"""Template tags of the pages of datasets and volumes."""
