"""An order to run is on the wire what it would be if its members were encoded for each of them."""

from paceline.base.numbering import Inc
from paceline.master.outbox import SharedOrders
from paceline.wire.codec import decoder, encode
from paceline.wire.messages.agent import AgentDown, ToProcess
from paceline.wire.messages.group import Member, RunGroup

_decode = decoder(AgentDown)


def order(inc: int, members: tuple[Member, ...]) -> RunGroup:
    return RunGroup(epoch_no=1, inc=Inc(inc), group=3, step=7, members=members)


def members_of(*incs: int) -> tuple[Member, ...]:
    return tuple(Member(Inc(inc), f"worker-{inc}", f"tcp://10.0.0.1:{inc}") for inc in incs)


def test_members_are_encoded_once_for_all_of_them() -> None:
    orders, members = SharedOrders(), members_of(1, 2, 3)
    for inc in (1, 2, 3):
        plain = order(inc, members)
        packed = encode(ToProcess(inc=Inc(inc), body=orders.packed(plain)))
        assert packed == encode(ToProcess(inc=Inc(inc), body=plain))
        assert _decode(packed) == ToProcess(inc=Inc(inc), body=plain)


def test_each_order_has_its_own_members() -> None:
    orders = SharedOrders()
    for members in (members_of(1, 2), members_of(2, 3), (), members_of(1, 2)):
        plain = order(1, members)
        assert encode(orders.packed(plain)) == encode(plain)
