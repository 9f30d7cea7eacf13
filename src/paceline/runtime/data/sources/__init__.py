"""The data sources that paceline brings, a module each.

A module has the name of its class: ``tar_rows`` has ``TarRows``. So a new source is public as
``pl.TarRows`` without a list to be kept.
"""
