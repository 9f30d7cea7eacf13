"""Policies of other papers, to compare with: plug-ins, as anybody's own would be."""
