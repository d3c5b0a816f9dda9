"""One file a group of pages: thin views over access, actions and reads."""
