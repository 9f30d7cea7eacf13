"""Strategy fsdp: every worker holds a shard of the model, as torch's FSDP2 divides it."""
