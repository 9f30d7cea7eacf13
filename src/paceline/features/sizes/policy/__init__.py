"""The size of one job: what it should be, from what was measured at the sizes that it had."""
