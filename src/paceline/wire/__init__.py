"""Everything that crosses a process boundary, and the channels that carry it."""
