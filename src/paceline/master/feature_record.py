"""The record in which features' own records travel in the journal."""

import msgspec

from paceline.protocol.records import Record


class FeatureKept(Record, frozen=True):
    """Journal record: what a feature's part must know after the master's death."""

    feature: str
    body: msgspec.Raw
    """Record of the feature as msgpack; the core does not decode it."""
