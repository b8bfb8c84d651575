"""Files that appear whole or not at all, protected by checksums: what collections, indexes and hashers are saved in."""
