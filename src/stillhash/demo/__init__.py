"""The demonstration, in a terminal and as a page."""
