"""Decisions of the device coordinator about how jobs share a device. Pure."""
