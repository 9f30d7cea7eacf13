"""Features: each is one folder that the core does not name, and declares itself (`Feature`)."""
