"""Events of a job, as values: the lines of ``events.jsonl``, written and read as one union.

One module per topic; `lines` has the union of all, and reads them. A line has the fields of its
event, and a ``reason`` for people: the event's `Event.clause`. Nothing but the events themselves
makes words of them. The page "Events" of the reference is the table of all.

    outbox.tell(CutValidEvent(cut_no=3, step=7))
    {"t":1.5,"event":"cut_valid","reason":"cut 3 at step 7","cut_no":3,"step":7}
"""
