"""Numbers that AntDT published, to be shown beside ours.

Table III's times are as printed; some of its percentages, and of those in the text, are not what
its times give, so only times are kept. Figures 10, 11 and 15 have no numbers in the text but by how
much another method's time exceeds that of AntDT's solution.
"""

JCT_S: dict[tuple[str, str], float] = {
    ("worker 0.1", "BSP"): 4312,
    ("worker 0.3", "BSP"): 4832,
    ("worker 0.5", "BSP"): 6004,
    ("worker 0.8", "BSP"): 8144,
    ("server 0.1", "BSP"): 4627,
    ("server 0.3", "BSP"): 6087,
    ("server 0.5", "BSP"): 7365,
    ("server 0.8", "BSP"): 8440,
    ("worker 0.1", "ND"): 3745,
    ("worker 0.3", "ND"): 3790,
    ("worker 0.5", "ND"): 3859,
    ("worker 0.8", "ND"): 3982,
    ("server 0.1", "ND"): 3636,
    ("server 0.3", "ND"): 3863,
    ("server 0.5", "ND"): 3944,
    ("server 0.8", "ND"): 4064,
    ("ResNet-101", "DDP"): 1266,
    ("ResNet-101", "LB-BSP"): 1020,
    ("ResNet-101", "DD"): 912,
    ("homepage", "BSP"): 27.8 * 3600,
    ("homepage", "ND"): 5.4 * 3600,
}
"""Published times in seconds, by scenario and method: Table III, section VII-C, section VII-F."""

TIMES_ND: dict[tuple[str, str, str], float] = {
    ("worker 0.8", "bsp", "BSP"): 8144 / 3982,
    ("worker 0.8", "bsp", "backup workers"): 1 / (1 - 0.24),
    ("worker 0.8", "bsp", "LB-BSP"): 1 / (1 - 0.44),
    ("server 0.8", "bsp", "BSP"): 8440 / 4064,
    ("server 0.8", "bsp", "backup workers"): 1 / (1 - 0.66),
    ("server 0.8", "bsp", "LB-BSP"): 1 / (1 - 0.51),
    ("worker 0.8", "asp", "ASP-DDS"): 1.16,
    ("worker 0.8", "asp", "ASP"): 4.25,
    ("server 0.8", "asp", "ASP"): 2.0,
    ("fleet", "bsp", "BSP"): 1 / (1 - 0.265),
    ("fleet", "bsp", "backup workers (a tenth)"): 1 / (1 - 0.10),
    ("fleet", "bsp", "LB-BSP"): 1 / (1 - 0.08),
    ("fleet", "asp", "ASP"): 1.41,
    ("fleet", "asp", "ASP-DDS"): 1.175,
    ("homepage", "bsp", "BSP"): 27.8 / 5.4,
}
"""Ratio of another method's JCT to that of ND, by scenario, mode and method. In ASP, the x of
"outperforms by x %" is taken for how much longer the other method takes."""

TIMES_DD: dict[tuple[str, str], float] = {
    ("ResNet-101", "DDP"): 1266 / 912,
    ("ResNet-101", "LB-BSP"): 1020 / 912,
    ("MobileNet", "DDP"): 1.485,
    ("MobileNet", "LB-BSP"): 1.25,
}
"""Ratio of another method's JCT to that of DD, by model and method."""

RESTART_S: dict[str, float] = {"restart, ledger": 120.0, "restart, 5 min": 1020.0}
"""Fig. 17: what a restart costs the job, without the node's own start."""
