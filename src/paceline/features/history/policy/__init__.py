"""Pure: what jobs are like, and the size that one begins with from those like it."""
