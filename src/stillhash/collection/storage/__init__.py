"""The files of a collection on disk: SQLite, sealed segments, checksums, snapshots and repair."""
