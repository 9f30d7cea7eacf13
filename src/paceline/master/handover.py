"""What another machine needs beside a cut, to go on with the job from it."""

from msgspec.structs import replace

from paceline.base.numbering import CutNo
from paceline.base.record_log import encode
from paceline.cuts.remote import Handover
from paceline.master.parts import MasterParts
from paceline.protocol.records import CutGone
from paceline.protocol.snapshot import take
from paceline.protocol.training import MasterState


def handover_of(parts: MasterParts, state: MasterState, cut_no: CutNo) -> Handover:
    """All that another machine needs with this cut: as if the job had ended with it.

    Args:
        parts: of the master.
        state: of the training.
        cut_no: the cut's.
    """
    others = (cut.cut.cut_no for cut in state.cuts.valid if cut.cut.cut_no != cut_no)
    # What nodes can do, and what their starts cost, is of this machine.
    records = [
        take(state),
        *parts.members.snapshot(),
        *(CutGone(cut_no=number) for number in others),
    ]
    unset = dict.fromkeys(parts.spec.env, "")
    return Handover(
        job_id=parts.job.job_id,
        spec=replace(parts.spec, env=unset),
        launched_s=parts.job.launched_s(),
        journal=tuple(map(encode, records)),
    )
