"""Texts of `f1` for prompts, the editor and the strips; columns have their own."""

from __future__ import annotations

EDITOR = (
    ("ctrl+z, ctrl+y", "Undo, redo"),
    ("ctrl+a, ctrl+e", "Begin, end of the line"),
    ("ctrl+k, ctrl+u", "Delete to its end, to its begin"),
    ("ctrl+d, ctrl+w", "Delete the next character, the word before"),
    ("shift+arrows", "Select"),
    ("ctrl+x, c, v", "Cut, copy, paste"),
)
"""Keys of the editor itself."""
EDITOR_COMMANDS = (
    ("program.next_direction", "The probe's other direction: incoming or outgoing packets"),
    ("program.panel", "The next panel: log, difference, what a swap keeps, metrics, events"),
    ("program.next_error", "To the next problem"),
    ("program.compile", "Compile and verify; nothing that runs is touched"),
    ("program.swap", "Swap in; no packet is lost"),
    ("program.rollback", "Back to the generation before"),
    ("program.revert", "Back to the source that runs"),
    ("program.save", "Write this source to a file"),
    ("program.external", "Open it in $EDITOR"),
    ("program.leave", "To the list of programs, where ? has the other keys"),
)
"""Commands that are of use in the editor; help shows them by the user's keys."""
HEALTH = (
    ("3 probes measure", "Every probe that runs has told of a window when it was due"),
    ("flow 2.4 ms / 1 s", "What reading a probe's tables took, of the length of a window"),
    ("map 6 %", "How full the fullest of them was"),
    ("gen 2", "It runs the second program: it was swapped, or what is counted was changed"),
    ("lost", "Packets, or results, that should be in what is shown and are not"),
)
"""What the health strip says."""
PROMPT = (
    ("tab", "Complete; again: the next one"),
    ("up, down", "What was typed before"),
    ("enter", "Do it"),
    ("esc", "Leave it"),
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
    ("NAME: ... -> ...", "While the condition holds, what stands behind the arrow is awake"),
    ("packets > 1000", "Of a window: packets bytes flows, tcp_packets udp_bytes icmp_..."),
    ("rate(bytes)>1Mbit/s", "Per second; also avg min max sum(x, 60s), of the last windows"),
    ("5 * baseline(60s)", "Against what is usual; conditions are joined by and, or, not"),
    ("always, operator", "In a condition's place: permanent; only by key o"),
    ("until flows < 100", "When it ends; hold 5s: stays so long; cooldown 10s: rests so long"),
    ("-> accounting, dns", "Also heavy_hitters half_open port_scan, and trace:3 of the top flows"),
    ("on tcp port:443", "Only these packets"),
)
"""The language of policies, by example."""
