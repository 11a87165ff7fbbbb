"""A policy in one line: meaning, refusals, and the way back to the same text."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpf.errors import UsageError
from probes.monitor.policy import FORM, MAX_SECONDS, Policy


def test_the_short_form_says_all_of_a_policy() -> None:
    """S2.12, S2.23."""
    text = (
        "flood: flows > 10000 and udp_packets / packets > 80% until flows < 5000 hold 1.5s"
        " cooldown 120s suspects flags:S packets<=3"
        " -> web, dns, trace:5 on proto:udp dst:192.0.2.0/24 or dport:53"
    )
    policy = Policy.parse_short(text)
    assert policy == Policy(
        name="flood",
        condition="flows > 10000 and udp_packets / packets > 80%",
        deactivate="flows < 5000",
        hold=1.5,
        cooldown=120,
        suspects="flags:S packets<=3",
        select=("proto:udp dst:192.0.2.0/24", "dport:53"),
        run=("web", "dns", "trace:5"),
    )
    assert policy.to_short() == text
    spread = (
        "flood :flows>10000 and udp_packets/packets>80%  cooldown 2m suspects udp"
        "  hold 1500ms  until flows<5000"
    )
    assert Policy.parse_short(
        f"{spread}->web,dns ,trace:5 on proto:udp  dst:192.0.2.0/24 or dport:53"
    )
    assert Policy.parse_short("flood: flows > 500 -> heavy_hitters") == Policy(
        name="flood", condition="flows > 500", run=("heavy_hitters",)
    )
    grouped = "!tcp (dport:53 or sport:53)"
    assert Policy.parse_short(f"a: always -> dns on {grouped}").select == (grouped,)
    assert Policy.parse_short("books: always -> accounting") == Policy(
        name="books", mode="permanent", run=("accounting",)
    )
    assert Policy.parse_short("hand: operator -> trace") == Policy(name="hand", run=("trace",))


WORD = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,12}", fullmatch=True)
DURATION = st.floats(0, MAX_SECONDS)
CONDITION = st.sampled_from(
    [
        "flows > 5",
        "packets on (udp or tcp port:53) > 5 * baseline(1m, 9)",
        "not (tcp_packets < 3 or udp_packets / packets >= 80%)",
        "flows>1",
    ]
)
TRIGGERED = st.fixed_dictionaries(
    {"condition": CONDITION},
    optional={"deactivate": CONDITION, "hold": DURATION, "cooldown": DURATION},
)
OTHER = st.sampled_from([{"mode": "permanent"}, {"mode": "operator"}])
FILTER = st.sampled_from(
    ["udp", "(udp or tcp) port:53", "net:10.0.0.0/8 dport:53,5353", "src:2001:db8::/32", "ip:6"]
)
THE_REST = st.fixed_dictionaries(
    {
        "name": WORD | st.sampled_from(["until", "on", "or", "always", "hold"]),
        "suspects": st.sampled_from(["", "flags:S packets<=3", "dst:10.0.0.0/8 or rate>1M"]),
        "run": st.lists(WORD | st.sampled_from(["trace:16", "on", "or"]), min_size=1, max_size=4),
        "select": st.lists(FILTER, max_size=3),
    }
)


@settings(max_examples=100, deadline=None)
@given(TRIGGERED | OTHER, THE_REST)
def test_what_the_short_form_writes_it_reads(when: dict[str, Any], rest: dict[str, Any]) -> None:
    policy = Policy.parse({**when, **rest}, "request")
    assert Policy.parse_short(policy.to_short()) == policy
    assert Policy.parse(json.loads(json.dumps(policy.dump())), "request") == policy


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from(string.printable) | st.characters(), max_size=60))
def test_whatever_is_typed_is_a_policy_or_one_line(text: str) -> None:
    for typed in (text, f"a: {text} -> dns", f"a: flows > 1 -> {text}"):
        try:
            policy = Policy.parse_short(typed)
        except UsageError as error:
            line = str(error)
        else:
            line = policy.to_short()
            assert Policy.parse_short(line) == policy
        assert line.isprintable()


THEN = "say RUN, or RUN, RUN on FILTER or FILTER"
SHORT = {
    "": "policy '' has no ':' (column 1); " + FORM,
    "flows > 5 -> dns": "policy 'flows > 5 -> dns' has no ':' (column 17); " + FORM,
    "flood: flows > 5": "policy 'flood: flows > 5' has no '->' (column 17); " + FORM,
    "9x: flows > 5 -> dns": (
        "policy '9x': name: '9x' is not a name (column 1);"
        " up to 64 letters, digits, _ . and -, the first a letter or _"
    ),
    "a: -> dns": "policy 'a': condition: it is missing (column 3); mode triggered needs one",
    "a: flws > 5 -> dns": (
        "policy 'a': condition: 'flws' is no metric (column 4); did you mean flows?"
    ),
    "a: flows > 5 until bites < 1 -> dns": (
        "policy 'a': deactivate: 'bites' is no metric (column 20); did you mean bytes?"
    ),
    "a: flows > 5 hold 5 parsecs -> dns": (
        "policy 'a': hold: 'parsecs' is no unit here (column 21); units are ns, us, ms, s, m, h, d"
    ),
    "a: flows > 5 suspects packts<3 -> dns": (
        "policy 'a': suspects: flows have no 'packts' (column 23); did you mean packets?"
    ),
    "a: flows > 5 hold -> dns": "policy 'a': nothing follows hold (column 18); " + FORM,
    "a: flows > 5 hold 1s hold 2s -> dns": "policy 'a': hold is given twice (column 22)",
    "a: always hold 5s -> dns": (
        "policy 'a': hold: mode permanent has none (column 16); triggered has"
    ),
    "a: operator until flows < 5 -> dns": (
        "policy 'a': deactivate: mode operator has none (column 19); triggered has"
    ),
    "a: flows > 5 ->": "policy 'a': '' after '->' is not understood (column 16); " + THEN,
    "a: flows > 5 -> dns half_open": (
        "policy 'a': 'dns half_open' after '->' is not understood (column 17); " + THEN
    ),
    "a: flows > 5 -> dns hold 5s": ("policy 'a': hold stands before '->' (column 21); " + FORM),
    "a: flows > 5 -> dns on udp suspects tcp": (
        "policy 'a': suspects stands before '->' (column 28); " + FORM
    ),
    "a: flows > 5 -> dns on": "policy 'a': 'dns on' after '->' is not understood (column 17); "
    + THEN,
    "a: flows > 5 -> dns on or udp": (
        "policy 'a': select[0]: a term is missing before 'or' (column 24); it joins two terms"
    ),
    "a: flows > 5 -> trace:99": (
        "policy 'a': run[0]: '99' is not a number of flows, 1 to 16 (column 17)"
    ),
    "a: flows > 5 -> dns on !dir:in": (
        "policy 'a': select[0]: 'dir:in' can't select packets (column 25); selections take"
        " protocols, ports, ICMP types, addresses, IP versions, TCP flags and VLANs"
    ),
}


@pytest.mark.parametrize("text", SHORT)
def test_a_malformed_short_form_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Policy.parse_short(text)
    assert str(refusal.value) == SHORT[text]
