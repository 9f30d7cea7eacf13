"""``from paceline.lightning import PacelineStrategy``: Lightning's Trainer in jobs of paceline."""

from paceline.runtime.integrations.lightning import PacelineStrategy

__all__ = ["PacelineStrategy"]
