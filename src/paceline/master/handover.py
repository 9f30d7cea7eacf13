"""Records beside a cut, so that a job can go on from it without the journal that made it.

At a URL another machine uses it. On disk a resumed job uses it, if its journal ends before the cut:
a power cut takes the newest transactions of a journal, but no cut.
"""

from msgspec.structs import replace

from paceline.base.numbering import CutNo
from paceline.base.record_log import encode
from paceline.cuts.remote import Handover, pack_handover
from paceline.master.parts import MasterParts
from paceline.protocol.records import CutGone, CutStored, CutValid, Records
from paceline.protocol.snapshot import take
from paceline.protocol.training import MasterState


def handover_of(parts: MasterParts, state: MasterState, cut_no: CutNo) -> Handover:
    """Return all that another machine needs with this cut: as if the job had ended with it.

    Args:
        parts: of the master.
        state: of the training.
        cut_no: number of a cut on disk.
    """
    others = (cut.cut.cut_no for cut in state.cuts.valid if cut.cut.cut_no != cut_no)
    return _handover(parts, state, [CutGone(cut_no=number) for number in others])


def beside_cut(parts: MasterParts, state: MasterState, valid: CutValid) -> bytes:
    """Return the same, packed, of a cut whose manifest is about to be written to disk.

    Cuts before it stay known: the machine has them, in case that this one gets damaged.
    """
    known = any(cut.cut.cut_no == valid.cut.cut_no for cut in state.cuts.valid)
    cut = replace(valid.cut, memory=False, stored=True)
    becomes = CutStored(cut=cut) if known else replace(valid, cut=cut)
    return pack_handover(_handover(parts, state, [*state.holder.proof_of(valid), becomes]))


def _handover(parts: MasterParts, state: MasterState, last: list[Records]) -> Handover:
    # What nodes can do, and what their starts cost, is of this machine.
    records = [take(state), *parts.members.roster.snapshot(), *last]
    unset = dict.fromkeys(parts.spec.env, "")
    return Handover(
        job_id=parts.job.job_id,
        spec=replace(parts.spec, env=unset),
        launched_s=parts.job.launched_s(),
        journal=tuple(map(encode, records)),
    )
