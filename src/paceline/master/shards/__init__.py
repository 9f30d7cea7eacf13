"""The shard ledger."""
