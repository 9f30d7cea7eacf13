"""``paceline rehearse`` and ``paceline check``: what a script does when its job is disturbed."""
