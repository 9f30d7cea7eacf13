"""A cut as bytes: its files and manifest, in memory, on disk, at a URL."""
