"""A policy and its states, which the tests of its rows and of its screen share."""

from __future__ import annotations

from probes.monitor.state import PolicyState

FLOOD = "flood: flows > 500 until flows < 300 hold 5s cooldown 10s -> heavy_hitters, trace on udp"
NASTY = "\x1b[31m \u202e"
ON, ARMED, OFF = PolicyState.ACTIVE, PolicyState.ARMED, PolicyState.OFF
