"""State in the members of a group: the parts of the master and of a member."""
