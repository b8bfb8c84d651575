"""The pages that people see: search, learning, collection."""
