"""Members of one group: how they meet, the steps they do together, how the group is formed anew.

A group's connections: `group`, `transports`, `store`, `links`; what peers ask: `door`. A member:
`state` (the machine), `member` (its edge), `keeper` (cuts). A step: `loop`, `step`, `sharing` (who
computes what), `reducer` (the mean of all), `short` (who is not waited for), `profiling`. What
strategies of such members have in common: `stepping`.
"""
