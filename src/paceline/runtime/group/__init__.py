"""Members of one group: how they meet, the steps they do together, how the group is formed again.

A group's connections: `group`, `transports`, `store`, `links`; what peers ask: `listener`. A
member: `member` (around the machine in `protocol`), `peers`, `cut_session` (cuts). A step: `loop`,
`step`, `reducer` (the mean of all), `short` (late members), `profiling`, `watcher` (values that
differ). What strategies of such members have in common: `strategy`.
"""
