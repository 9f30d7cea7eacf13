"""How jobs share a device: what the device coordinator decides. Pure."""
