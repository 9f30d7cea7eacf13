"""Sharing of devices: jobs of one machine use the same cores or the same GPU, one of them first."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="sharing",
    about="lets jobs share cores or a GPU: a guaranteed one runs as if it were alone",
    switch="--device, share.device",
    keys=("share",),
    lacks="paceline.features.sharing.lacks:lacks",
    master="paceline.features.sharing.master:SharingPart",
    agent="paceline.features.sharing.agent:make",
    explained="paceline.features.sharing.log:explain",
    process="paceline.features.sharing.process.part:make",
)
