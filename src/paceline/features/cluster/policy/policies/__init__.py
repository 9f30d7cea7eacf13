"""The scheduling policies that paceline brings."""
