"""Every message of a job, as frozen structs.

One module per plane, with its union: `data.Data` (workers and servers, header beside raw tensor
frames), `node.NodeUp` and `NodeDown` (a training process and the master) and `agent.AgentUp` and
`AgentDown` (an agent and the master). All are msgpack on the wire and are the very events that the
pure state machines take, so what the explorer in ``tests/model`` permutes is what production sends.

Rules (docs/protocols/integrity.md, section 2): every message names ``epoch_no`` and the incarnation
``inc`` of its sender; a receiver acts only if ``epoch_no`` equals its own. Senders repeat until
answered.
"""
