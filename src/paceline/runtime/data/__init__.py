"""The way from leased ranges of positions to batches."""
