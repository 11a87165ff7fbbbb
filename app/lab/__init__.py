"""The lab: a small network of namespaces with live traffic, for `probedeck lab` and for tests.

The module has its options, and loads nothing else: the command line imports it at each start.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes.config.options import setting

LAB = "Lab"
"""Heading of the options in the help."""


@dataclass(frozen=True, slots=True)
class LabOptions:
    """Traffic of a lab."""

    traffic: float | None = setting(
        LAB, None, "Amount of traffic, 0.1 to 10; 1 is a calm office.", "FACTOR",
        usual="1; no traffic with --replay", flags=("--rate",),
    )  # fmt: skip
    replay: str = setting(
        LAB,
        "",
        "Receive the frames of a pcap or pcapng file, once; .gz, too. A headless run without "
        "--duration ends after them.",
        "FILE",
    )
    speed: str = setting(
        LAB,
        "",
        "Speed of the replay; 2 is twice as fast as recorded.",
        "FACTOR|max",
        usual="1",
    )
    max_gap: float | None = setting(
        LAB,
        None,
        "Leave out what is longer of a time without frames in the capture; inf: nothing.",
        "SECONDS",
        usual="10",
    )
