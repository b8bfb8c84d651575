"""Tables into a collection and out of it, and collections from segments written elsewhere."""
