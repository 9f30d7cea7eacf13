"""The data sources that paceline brings, a module each.

A module has the name of its class: ``tar_rows`` has ``TarRows``. So a new source is public as
``pl.TarRows`` without a list to be kept. The port is `paceline.runtime.data.source.DataSource`, and
what holds for each is in ``tests/unit/data/test_sources.py``.
"""
