"""A keeper of the job's journal, on another machine than the master's. Pure.

The rules are those of Raft (Ongaro and Ousterhout, 2014), with the master as the leader and its
journal as the log:

- Each master has a *term*. Its journal begins the term as the copy that every keeper gets, so no
  keeper has to take anything back.
- What depends on a record leaves the master only when a majority of the seats holds the record.
- A keeper that has not heard the master for long asks the others for their votes. A seat votes
  once in a term, and only for one whose journal is at least as new as its own. So the winner
  has all that has ever left a master.
- It asks on trial first. Others that hear the master refuse, so a lonely keeper does no harm.
- While seats change, majorities before and after the change are needed.

A seat is one life of an agent, which keeps all of this in memory.
"""

import math

from paceline.wire.messages.keeping import (
    AskVote,
    JournalAdd,
    JournalCopy,
    JournalPlace,
    Seats,
    VoteIs,
)


class JournalKeeper:
    """One keeper; times are by the caller's clock.

    Args:
        seat: its name.
        silent_s: seconds without a word of the master after which another one may be started.
    """

    def __init__(self, seat: str, silent_s: float) -> None:
        self.seat, self.silent_s = seat, silent_s
        self.term = 0
        """The newest term that it has heard of."""
        self.place = JournalPlace()
        """What it holds: all of `records`."""
        self.records: list[bytes] = []
        self.seats = Seats()
        """As the journal that it holds says."""
        self.leader = ""
        """Seat of the master of this term; empty: not known."""
        self.heard_s = -math.inf
        """When that was last heard."""
        self.has_left = False
        """Whether it votes no more: it ends, or has handed its seat over to a master."""
        self._voted = ""
        self._copy: list[bytes] = []
        #: How many parts of it are there, and of which place.
        self._parts, self._copied = 0, JournalPlace()

    @property
    def keeps(self) -> bool:
        """Whether it has a seat and the journal with it."""
        return not self.has_left and self.seat in self.seats

    # ------------------------------------------------------------------ from the master

    def copy(self, message: JournalCopy, now_s: float) -> bool:
        """Take a part of the journal; whether it is of the newest master."""
        if not self._follows(message.place.term, message.leader, now_s):
            return False
        if message.place < self.place:
            return True  # it was late: what is held was told the master since
        if message.part == 0:
            self._copy, self._parts, self._copied = [], 0, message.place
        if message.part != self._parts or message.place != self._copied:
            return True  # something is missing: it comes again, from the beginning
        self._copy += message.records
        self._parts += 1
        if message.is_last:
            self.records, self._copy, self._parts = self._copy, [], 0
            self.place, self.seats = message.place, message.seats
        return True

    def add(self, message: JournalAdd, now_s: float) -> bool:
        """Take further records; whether they are of the newest master."""
        if not self._follows(message.after.term, message.leader, now_s):
            return False
        if message.after == self.place:
            self.records += message.records
            self.place = JournalPlace(self.place.term, self.place.index + len(message.records))
            self.seats = self.seats if message.seats is None else message.seats
        return True

    def _follows(self, term: int, leader: str, now_s: float) -> bool:
        if term < self.term:
            return False
        self._knows(term)
        self.leader, self.heard_s = leader, now_s
        return True

    def _knows(self, term: int) -> None:
        if term > self.term:
            self.term, self._voted, self.leader = term, "", ""

    # ------------------------------------------------------------------ votes

    def asked(self, vote: AskVote, now_s: float) -> VoteIs:
        """Vote, or say how it would. Who asks knows whose votes count."""
        grants = not self.has_left and vote.place >= self.place
        if vote.is_trial:
            # A master that has started again on its machine goes on at once.
            free = self.leader in ("", vote.seat) or now_s - self.heard_s >= self.silent_s
            grants = grants and free and vote.term > self.term
            return VoteIs(seat=self.seat, term=self.term, granted=grants)
        self._knows(vote.term)
        grants = grants and vote.term == self.term and self._voted in ("", vote.seat)
        grants = grants and not self.leader
        if grants:
            self._voted, self.heard_s = vote.seat, now_s
        return VoteIs(seat=self.seat, term=self.term, granted=grants)

    def is_due(self, now_s: float, wait_s: float) -> bool:
        """Tell whether to ask for votes, after so many seconds without a master."""
        return self.keeps and now_s - self.heard_s >= wait_s

    def trial(self) -> AskVote:
        """Ask how the others would vote."""
        return AskVote(term=self.term + 1, seat=self.seat, place=self.place, is_trial=True)

    def campaign(self) -> AskVote:
        """Ask for votes, once a trial was won."""
        self._knows(self.term + 1)
        self._voted = self.seat
        return AskVote(term=self.term, seat=self.seat, place=self.place)

    def has_won(self, asked: AskVote, answers: list[VoteIs], now_s: float) -> bool:
        """Tell whether a majority has said yes; what was heard meanwhile may have ended it.

        Args:
            asked: what the others were asked.
            answers: those that came.
            now_s: the time.
        """
        for answer in answers:
            self._knows(answer.term)
        stands = self.term == asked.term - asked.is_trial and self.keeps
        # A master that was heard since is there, and what it has added is not in ``asked``.
        heard = bool(self.leader) and now_s - self.heard_s < self.silent_s
        if not stands or heard or asked.place != self.place:
            return False
        return self.seats.elects({self.seat} | {one.seat for one in answers if one.granted})
