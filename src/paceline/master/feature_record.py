"""The record in which features' own records travel in the journal."""

from types import MappingProxyType

import msgspec

from paceline.protocol.records import Record

_OF_BEFORE = MappingProxyType(
    {"NodeChecked": "failslow", "SizeAtStart": "history", "SizingKept": "sizes"}
)
"""Records that were the core's before they became a feature's, by tag. Journals hold them."""


class FeatureKept(Record, frozen=True):
    """Journal record: what a feature's part must know after the master's death."""

    feature: str
    body: msgspec.Raw
    """Record of the feature as msgpack; the core does not decode it."""


class _Tagged(msgspec.Struct):
    type: str


_tagged = msgspec.msgpack.Decoder(_Tagged)


def kept_before(data: bytes) -> FeatureKept | None:
    """Return a record of a version in which it was the core's as one of the feature's.

    Args:
        data: the record, encoded, which is none of the core's.

    Returns:
        None: it was not the core's before either.

    Raises:
        MsgspecError: it is damaged.
    """
    feature = _OF_BEFORE.get(_tagged.decode(data).type)
    return None if feature is None else FeatureKept(feature=feature, body=msgspec.Raw(data))
