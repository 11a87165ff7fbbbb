"""Texts of `f1` for prompts, the editor and the strips; columns have their own."""

from __future__ import annotations

EDITOR = (
    ("ctrl+z, ctrl+y", "Undo, redo"),
    ("ctrl+a, ctrl+e", "Begin, end of the line"),
    ("ctrl+k, ctrl+u", "Delete to the end, to the beginning of the line"),
    ("ctrl+d, ctrl+w", "Delete the next character, the word before"),
    ("shift+arrows", "Select"),
    ("ctrl+x, c, v", "Cut, copy, paste"),
)
"""Keys of the editor itself."""
EDITOR_COMMANDS = (
    ("program.next_direction", "The probe's other direction: incoming or outgoing packets"),
    ("program.panel", "The next panel: log, difference, swap report, metrics, events"),
    ("program.next_error", "To the next problem"),
    ("program.compile", "Compile and verify; nothing that runs is touched"),
    ("program.swap", "Swap in; no packet is lost"),
    ("program.rollback", "Back to the generation before"),
    ("program.revert", "Back to the source that runs"),
    ("program.save", "Write this source to a file"),
    ("program.external", "Open it in $EDITOR"),
    ("program.leave", "To the list of programs, where ? has the other keys"),
)
"""Commands that are useful in the editor; help shows them with the user's keys."""
HEALTH = (
    ("3 probes measure", "Every running probe reported its last window in time"),
    ("flow 2.4 ms / 1 s", "Time to read a probe's tables, and the length of a window"),
    ("map 6 %", "Use of the fullest table"),
    ("gen 2", "The second program runs: after a swap, or another flow.capture"),
    ("lost", "Packets or results that are missing in the tables"),
)
"""Items of the health strip."""
PROMPT = (
    ("tab", "Complete; again: the next one"),
    ("up, down", "The history"),
    ("enter", "Run it"),
    ("esc", "Cancel"),
)
"""Keys of every prompt."""
FILTER = (
    ("tcp 443", "Protocol, port, host: terms that all must hold"),
    ("dport:80,443", "One of these; sport: port: too, and ranges 8000-8100"),
    ("src:10.0.0.0/8", "An address or prefix; dst: net: host: too"),
    ("host:/regex/", "Address or name matches"),
    ("rate>1M rtt>50ms", "Numbers with units: bytes packets age idle loss jitter"),
    ("proto:udp ip:6 dir:in", "Also by version and direction"),
    ("!tcp", "All but these"),
)
"""The language of filters, by example."""
POLICY = (
    ("NAME: ... -> ...", "While the condition holds, the applications after the arrow run"),
    ("packets > 1000", "Of a window: packets bytes flows, tcp_packets udp_bytes icmp_..."),
    ("rate(bytes)>1Mbit/s", "Per second; also avg min max sum(x, 60s), of the last windows"),
    ("5 * baseline(60s)", "Compared with the usual value; and, or, not join conditions"),
    ("always, operator", "In place of a condition: permanent; only by key o"),
    ("until flows < 100", "End; hold 5s: least time on; cooldown 10s: least time off"),
    ("-> accounting, dns", "Also heavy_hitters half_open port_scan, and trace:3 of the top flows"),
    ("on tcp port:443", "Only these packets"),
)
"""The language of policies, by example."""
