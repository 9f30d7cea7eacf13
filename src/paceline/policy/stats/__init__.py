"""Windows and change points that the policies look through."""
