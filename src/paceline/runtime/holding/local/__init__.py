"""Strategy of a script started without `paceline run`: torch trains in this process."""
