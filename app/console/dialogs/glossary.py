"""What `f1` tells: what the columns of each table mean, and what can be done with all else that has
the focus."""

from __future__ import annotations

from collections.abc import Mapping

_TIME_LINE = (
    "A bar is two seconds; all rows have the scale that the title ends with. "
    "\N{MULTIPLICATION SIGN}: every probe was lost. A bar that hangs: some were. ◆: another way "
    "was taken then."
)

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "traffic": {
        "way": "Into this host, or out of it; below, the most of a window on the line.",
        "rate": "Bits per second over the last window, or the last half second.",
        "packet_rate": "Packets per second, likewise.",
        "line": "A bar is two seconds, or a window that is longer; a bar that hangs: packets are "
        "missing there.",
    },
    "warnings": {
        "time": "When it last happened, UTC; or lost: what is missing, since the start.",
        "source": "The probe or part of probedeck that tells it.",
        "text": "What happened; of losses how many packets, by their reasons.",
        "times": "How often it did, with other numbers.",
    },
    "flows": {
        "direction": "Into this host, or out of it.",
        "protocol": "TCP, UDP, ICMP, ...; a number where it has no usual name.",
        "source": "Address and port that packets come from.",
        "destination": "Address and port that they go to; of ICMP the message's type.",
        "rate": "Bits per second over the last window, or the last half second.",
        "packet_rate": "Packets per second, likewise.",
        "packets": "Since the flow was first seen here.",
        "bytes": "Since then; of IP packets, with their headers.",
        "age": "Since its first packet.",
        "idle": "Since its last packet, where that is more than 3 s ago.",
        "rtt": "Median round-trip time of the last minute on its path, where that is traced.",
        "flags": "Every TCP flag seen: FIN, SYN, RST, PSH, ACK, URG, ECE, CWR.",
        "version": "4 or 6.",
        "source_port": "By itself.",
        "destination_port": "By itself.",
        "size": "Of a packet, on average.",
        "first": "When its first packet came, UTC.",
        "last": "When its last packet came, UTC.",
        "totals": "at least: the flow had no row at times, as there were too many; ≥ marks it.",
    },
    "changes": {
        "direction": "Into this host, or out of it.",
        "protocol": "TCP, UDP, ICMP, ...; a number where it has no usual name.",
        "source": "Address and port that packets come from.",
        "destination": "Address and port that they go to; of ICMP the message's type.",
        "change": "Bits per second more, or fewer, than at the earlier moment.",
        "rate": "Bits per second at the later moment.",
        "before": "Bits per second at the earlier one.",
        "more": "Packets between the two; not known of a flow that is gone.",
        "state": "new: there was no packet of it before. gone: none for a minute.",
    },
    "hop_changes": {
        "hop": "How many routers away.",
        "host": "Who answers at the later moment; in another colour: another one did before.",
        "change": "Of the median, in milliseconds.",
        "median": "Of the minute before the later moment, in milliseconds.",
        "before": "Of the minute before the earlier one.",
        "loss": "Of the minute before the later moment.",
        "was_loss": "Of the minute before the earlier one.",
        "was_host": "Who answered at the earlier one, where that was another.",
    },
    "paths": {
        "path": "A destination that is traced, and below it the flows to it.",
        "hops": "Routers on the way, as far as is known.",
        "rtt": "Median of the last minute, to the last hop that answers.",
        "loss": "Of probes to that hop, in the last minute.",
        "state": "What is to be known first: a queue, another way, no packets.",
    },
    "hops": {
        "destination": "Where the path leads.",
        "hop": "How many routers away; the TTL or hop limit of its probes.",
        "host": "Who answers; +1: another router answers too.",
        "loss": "Of the last minute. Routers answer as they like: a loss that does not go on at "
        "the hops behind it is none.",
        "last": "The last round-trip time, in milliseconds.",
        "median": "Of the last minute, in milliseconds.",
        "p95": "19 of 20 were shorter, in the last minute.",
        "jitter": "Mean difference of one round-trip time to the next (RFC 3550).",
        "count": "Answers, and probes sent, since it is traced.",
        "address": "Of the router, also where its name is shown.",
        "sent": "Probes, since it is traced.",
        "line": _TIME_LINE,
    },
    "policies": {
        "policy": "Its name.",
        "state": "armed, active, in hold (active for a while yet) or cooling down; until when.",
        "condition": "When it is active; always, or when an operator says so.",
        "value": "What its condition compares, in the last window.",
        "band": "Where the true value lies, 95 times of 100: numbers of flows are estimates.",
        "threshold": "What it is compared with.",
        "line": "The value over time, of the threshold's height; a ground: it was active.",
        "runs": "What it wakes.",
        "selected": "Packets that it gave to its applications.",
    },
    "applications": {
        "application": "A probe that policies wake.",
        "active": "Whether any packet goes to it now.",
        "packets": "That it was given since it was loaded.",
        "ns": "What one of them costs, measured when it was loaded.",
        "policies": "Policies that wake it.",
        "summary": "What it does.",
    },
    "programs": {
        "probe": "Its name; the flow probe, path tracing and the monitor are probes too.",
        "side": "Incoming or outgoing packets.",
        "state": "Whether it runs, is edited, or has failed.",
        "interface": "Whose packets it sees.",
        "hook": "Where in the kernel, and how it is attached.",
        "generation": "A new number at each swap; in brackets what a roll-back brings back.",
        "cost": "For one packet, where it was measured (m).",
        "memory": "Of its maps, with all their clones.",
        "metrics": "Tables that it exports.",
    },
    "panel": {
        "place": "Line and column of the source.",
        "kind": "error, warning or note.",
        "text": "What the compiler or the verifier says.",
        "side": "Incoming or outgoing packets.",
        "map": "A map of the source, or a metric over one.",
        "fate": "What a swap does to its contents.",
        "reason": "Why it is not kept.",
        "metric": "Its name.",
        "key": "Of the map's entry.",
        "value": "Of the last window.",
        "time": "When it happened.",
    },
    "events": {
        "time": "When it happened, UTC.",
        "severity": "info, warning or error.",
        "source": "The probe or part of probedeck that tells it.",
        "text": "What happened.",
    },
}
"""By table and column."""

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
