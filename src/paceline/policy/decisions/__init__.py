"""The frame of all loops that decide: one open question, one log, one replay."""
