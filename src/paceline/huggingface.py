"""``from paceline.huggingface import Trainer``: transformers' Trainer in jobs of paceline."""

from paceline.runtime.integrations.huggingface import Trainer

__all__ = ["Trainer"]
