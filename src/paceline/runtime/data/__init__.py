"""From leased ranges of positions to batches."""
