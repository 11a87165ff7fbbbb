"""The language of filters: verdicts on rows, and errors."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.console.live.flows import LIVE
from bpf.errors import TextError, UsageError
from probes.filter import Filter, RowTable, check, parse, parts
from probes.filter.hosts import PROTOCOLS, address_text
from probes.filter.table import Coded
from probes.flow.filter import LIVE_FLOWS, WINDOW_FLOWS, FlowFilter
from probes.path.filter import ANSWERS
from probes.sockets.records import OWNER, SOCKET, Owned

SIZE = 60
_RANDOM = np.random.default_rng(1)


def made_rows() -> Any:
    """Rows of dtype LIVE with few different values, so that every term is true of some."""
    rows = np.zeros(SIZE, LIVE)
    choose = _RANDOM.choice
    rows["version"] = choice = choose([4, 6], SIZE)
    for end in ("source", "destination"):
        four = [ipaddress.ip_address(f"10.0.{n}.{n}").packed.ljust(16, b"\0") for n in range(4)]
        six = [ipaddress.ip_address(f"2001:db8:{n}::{n}").packed for n in range(4)]
        raw = [(four if v == 4 else six)[n] for v, n in zip(choice, choose(4, SIZE), strict=True)]
        rows[end] = np.frombuffer(b"".join(raw), "u1").reshape(-1, 16)
        rows[f"{end}_port"] = choose([0, 53, 80, 443, 8000, 65535], SIZE)
    rows["protocol"] = choose([1, 6, 17], SIZE)
    rows["direction"] = choose([0, 1], SIZE)
    rows["vlan"] = choose([0, 7, 20, 21], SIZE)
    rows["tunnel"] = choose([0, 1, 3], SIZE)
    rows["tunnel_id"] = np.where(rows["tunnel"] > 0, 5, 0)
    rows["tos"] = choose([0, 184], SIZE)
    rows["tcp_flags"] = choose([0, 2, 18, 16, 82], SIZE)
    for name in ("packets", "bytes"):
        rows[name] = choose([0, 100, 1000, 1024, 10**6], SIZE)
    for name in ("bit_rate", "packet_rate"):
        rows[name] = choose([0.0, 8.0, 999.5, 1e3, 1e6], SIZE)
    return rows


ROWS = made_rows()
RTTS = _RANDOM.choice([np.nan, 0.001, 0.05, 2.0], SIZE)
IDLE = _RANDOM.choice([0, 10**9, 60 * 10**9], SIZE)


class Known:
    """Names of some addresses."""

    version = 1

    def __init__(self) -> None:
        self.names = {"10.0.1.1": "www1.example.org", "2001:db8:2::2": "mail.example.net"}

    def name(self, address: str) -> str:
        return self.names.get(address, "")


OWNED = Owned(ROWS, np.empty(0, SOCKET), np.empty(0, OWNER))
TABLE = RowTable(
    ROWS,
    {**OWNED.columns, "rtt": lambda: RTTS, "idle": lambda: IDLE, "age": lambda: IDLE * 2},
    Known(),
    {**OWNED.coded, "node": lambda: Coded(np.arange(SIZE) % 2, ("ams", "fra"))},
)
Said = tuple[str, Callable[[Any], bool]]
"""A filter, and its verdict on the row at an index."""


def passing(text: str, saved: Mapping[str, str] | None = None) -> list[int]:
    return np.flatnonzero(parse(text, LIVE_FLOWS, saved or {}).mask(TABLE)).tolist()


def address(place: int, end: str) -> str:
    return address_text(ROWS[end][place].tobytes(), int(ROWS["version"][place]))


@st.composite
def terms(draw: st.DrawFn) -> Said:
    kind = draw(
        st.sampled_from(["proto", "port", "net", "number", "time", "host", "flags", "bare"])
    )
    if kind == "proto":
        names = draw(st.lists(st.sampled_from(["tcp", "udp", "icmp", "6"]), min_size=1, max_size=3))
        codes = {PROTOCOLS.get(name, 6) for name in names}
        return f"proto:{','.join(names)}", lambda n: int(ROWS["protocol"][n]) in codes
    if kind == "port":
        field = draw(st.sampled_from(["port", "sport", "dport"]))
        of = {"port": ("source", "destination"), "sport": ("source",), "dport": ("destination",)}
        low, high = sorted(draw(st.tuples(*[st.sampled_from([0, 53, 80, 443, 8000, 65535])] * 2)))
        ends = of[field]
        return f"{field}:{low}-{high}", lambda n: any(
            low <= int(ROWS[f"{end}_port"][n]) <= high for end in ends
        )
    if kind == "net":
        text = draw(st.sampled_from(["10.0.0.0/15", "10.0.1.0/24", "2001:db8:2::/48", "::/0"]))
        network = ipaddress.ip_network(text)
        return f"src={text}", lambda n: ipaddress.ip_address(address(n, "source")) in network
    if kind == "number":
        field, column = draw(
            st.sampled_from([("packets", "packets"), ("bytes", "bytes"), ("rate", "bit_rate")])
        )
        sign = draw(st.sampled_from(["<", "<=", ">", ">=", "=", "!="]))
        said, value = draw(
            st.sampled_from([("0", 0), ("100", 100), ("1k", 1e3), ("1Ki", 1024), ("1.5M", 1.5e6)])
        )
        return f"{field}{sign}{said}", lambda n: COMPARE[sign](float(ROWS[column][n]), float(value))
    if kind == "time":
        sign = draw(st.sampled_from(["<", "<=", ">", ">="]))
        said, value = draw(st.sampled_from([("50", 0.05), ("1ms", 0.001), ("2s", 2.0)]))
        return f"rtt {sign} {said}", lambda n: COMPARE[sign](float(RTTS[n]), value)
    if kind == "host":
        pattern = draw(st.sampled_from([r"^10\.0", "EXAMPLE", r"www\d", ":2::2$", "org|net"]))
        return f"host:/{pattern}/", lambda n: any(
            re.search(pattern, text, re.IGNORECASE)
            for end in ("source", "destination")
            for text in (address(n, end), Known().name(address(n, end)))
        )
    if kind == "flags":
        sign, looked_at = draw(st.sampled_from([(":", 18), ("=", 63)]))
        return f"flags{sign}SA", lambda n: int(ROWS["tcp_flags"][n]) & looked_at == 18
    word = draw(st.sampled_from(["tcp", "443", "2001:db8:1::1"]))
    meaning: dict[str, Callable[[Any], bool]] = {
        "tcp": lambda n: int(ROWS["protocol"][n]) == 6,
        "443": lambda n: 443 in (ROWS["source_port"][n], ROWS["destination_port"][n]),
        "2001:db8:1::1": lambda n: word in (address(n, "source"), address(n, "destination")),
    }
    return word, meaning[word]


COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": float.__lt__, "<=": float.__le__, ">": float.__gt__, ">=": float.__ge__,
    "=": float.__eq__, "!=": float.__ne__,
}  # fmt: skip


def joined(of: st.SearchStrategy[Said]) -> st.SearchStrategy[Said]:
    pair = st.tuples(of, of)

    def both(said: tuple[Said, Said], word: str) -> Said:
        (one, left), (other, right) = said
        if word == " or ":
            return f"({one} or {other})", lambda n: left(n) or right(n)
        return f"({one}{word}{other})", lambda n: left(n) and right(n)

    def contrary(said: Said, word: str) -> Said:
        return f"{word}{said[0]}", lambda n: not said[1](n)

    words = st.sampled_from([" or ", " and ", " ", "  "])
    return st.builds(both, pair, words) | st.builds(contrary, of, st.sampled_from(["!", "not "]))


@settings(max_examples=150, deadline=None)
@given(st.recursive(terms(), joined, max_leaves=6))
def test_it_means_of_each_row_what_it_says(said: Said) -> None:
    text, meaning = said
    expected = [place for place in range(SIZE) if meaning(place)]
    assert passing(text) == expected
    # As it writes itself it means the same.
    filter_of = FlowFilter.parse(text)
    assert passing(filter_of.expanded.text) == expected


_PIECES = st.sampled_from(
    [*LIVE_FLOWS.fields, *":<>=!(),/\"@&. -", "or ", "and ", "not ", "10.0.0.0/8", "50ms", "1M",
     "/a+/", "::1", "tcp ", "@x ", "\\", "\0", "\x1b", "%"]
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.lists(_PIECES, max_size=12).map("".join) | st.text(max_size=40))
@example("(" * 3000)
@example("!" * 3000)
@example("tcp " * 5000)
@example("host:/(((((((((((a)/")
@example("port:" + "9" * 5000)
@example("rate>" + "9" * 5000)
@example("host:/" + "(" * 199 + "/")
@example("process:,")
@example("process:nginx")
def test_whatever_is_typed_is_a_filter_or_is_told_where_it_is_none(text: str) -> None:
    try:
        found = parse(text, LIVE_FLOWS, {"x": "tcp @x", "y": "udp"})
    except UsageError as error:
        mistake = error
    else:
        assert len(found.mask(TABLE)) == SIZE
        return
    assert isinstance(mistake, TextError)
    assert 1 <= mistake.column <= len(text) + 1
    assert "\n" not in str(mistake)


WRONG = [
    ("prto:tcp", 1, "flows have no 'prto'", "did you mean proto?"),
    ("dport:443 prot:tcp", 11, "flows have no 'prot'", "did you mean proto?"),
    ("hops>3", 1, "flows have no 'hops'", "did you mean host?"),
    ("port:http", 6, "'http' is not a port", ""),
    ("port:80,70000", 9, "'70000' is not a port", ""),
    ("port:80-", 9, "'' is not a port", ""),
    ("port:90-80", 6, "no port is from 90 to 80", ""),
    ("port<1", 6, "no port is < 1", ""),
    ("port:", 6, "port: has no value", ""),
    ("port:80, 90", 9, "port: has no value", ""),
    ("net:10.0.0.0/33", 5, "'10.0.0.0/33' is not an address or prefix", ""),
    ("net:www", 5, "'www' is not an address or prefix", ""),
    ("src:10.0.0.256", 5, "'10.0.0.256' is not an address or prefix", ""),
    ("src>10", 5, "> is for numbers", "write : instead"),
    ("proto:tpc", 7, "there is no protocol 'tpc'", "did you mean tcp?"),
    ("proto:300", 7, "there is no protocol '300'", "there are icmp"),
    ("proto:/t/", 7, "a pattern is for texts, hosts and addresses", ""),
    ("ip:5", 4, "there is no IP version '5'", "there are 4, 6"),
    ("dir:up", 5, "there is no direction 'up'", "there are in, out"),
    ("rtt>50x", 7, "'x' is no unit here", "units are ns, us, ms, s, m, h, d"),
    ("rtt>ms", 5, "'ms' is not a number", "units are ns, us, ms, s, m, h, d"),
    ("packets:1-x", 11, "'x' is not a number", "units are k, M, G, T, Ki, Mi, Gi, Ti"),
    ("packets:2k-1k", 9, "the range is empty: it ends before it begins", ""),
    ("icmp:unreachble/3", 6, "there is no ICMP type 'unreachble'", "did you mean unreachable?"),
    ("icmp:256", 6, "there is no ICMP type '256'", "there are echo-reply"),
    ("icmp:3/256", 8, "'256' is not an ICMP code", ""),
    ("icmp>3", 6, "> is for numbers", "write : instead"),
    ("id:65536", 4, "'65536' is not a 16-bit identifier", ""),
    ("dscp:64", 6, "there is no DSCP '64'", "there are"),
    ("vlan:4096", 6, "'4096' is not a VLAN id", ""),
    ("tunnel:vxlam", 8, "there is no kind of tunnel 'vxlam'", "did you mean vxlan?"),
    ("flags:SX", 8, "'X' is no TCP flag", "they are FSRPAUEW"),
    ("what", 1, "'what' is not understood", "a bare word is one of proto, port, net"),
    ("tcp; drop", 1, "'tcp;' is not understood", "did you mean tcp?"),
    ('net:"', 5, "this quotation has no end", 'a " ends it'),
    ("host:/x", 6, "this pattern has no end", "a / ends it"),
    ("host:/x/y", 9, "a space is missing after 'host:/x/'", ""),
    ("host:/a(b/", 8, "this is no pattern: missing ), unterminated subpattern", ""),
    (
        "host:/(a+)+b/",
        7,
        "the pattern can match in too many ways",
        "{1,3} in the place of + or * has few",
    ),
    ("(tcp", 1, "'(' is not closed", ""),
    ("tcp)", 4, "')' closes nothing", ""),
    ("tcp (  )", 8, "a term is missing", "such as port:443"),
    ("tcp or", 7, "a term is missing", "such as port:443"),
    ("or tcp", 1, "a term is missing before 'or'", "it joins two terms"),
    ("!", 2, "a term is missing", "such as port:443"),
    ("tcp @nothing", 5, "no filter is saved as 'nothing'", "there are @unit, @web, @bad, @self"),
    ("tcp !@bad", 6, "in @bad, 'udp prot:x': flows have no 'prot'", "did you mean proto?"),
    ("tcp @unit", 5, "in @unit, 'rtt>50q': 'q' is no unit here", "units are ns"),
    ("@self", 1, "in @self, 'tcp or @self': @self is saved as a filter of itself", ""),
    ("!" * 30 + "tcp", 21, "more than 20 levels", ""),
    ("x" * 9000, 8193, "it is longer than 8192 characters", ""),
]
SAVED = {"unit": "rtt>50q", "web": "port:80,443", "bad": "udp prot:x", "self": "tcp or @self"}


@pytest.mark.parametrize(("text", "column", "problem", "hint"), WRONG)
def test_what_is_wrong_is_said_with_its_column(
    text: str, column: int, problem: str, hint: str
) -> None:
    with pytest.raises(TextError) as caught:
        parse(text, LIVE_FLOWS, SAVED)
    error = caught.value
    assert (error.column, error.problem) == (column, problem)
    assert hint in error.hint
    assert bool(hint) == bool(error.hint)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("@web", "port:80,443"),
        ("!@web", "!port:80 !port:443"),
        ("tcp @web", "tcp port:80 or tcp port:443"),
        ("TCP", "proto:6"),
        ("icmp !icmp:0", "proto:icmp !dport:0-255"),
        ("tcp,udp", "proto:tcp,udp"),
        ("8000-9000", "port:8000-9000"),
        ("dport>=443 dport<8000", "dport:443-7999"),
        ("tcp or udp port:443", "(proto:tcp) or (udp and port:443)"),
        ("port:53 and not udp", "port:53 !udp"),
        ("rate>=1M", "rate >= 1Mbit/s"),
        ("rate>=8", "rate >= 1B/s"),
        ("rate>1KBIT", "rate>1kbit"),
        ("pps>5", "packet_rate>5/s"),
        ("flags:sa", "flags:SA"),
        ("flags=S", "flags:S !flags:F,R,P,A,U"),
        ("flags!=S", "!flags=S"),
        ("vlan:7-20", "vlan>6 vlan<=20"),
        ("vlan!=0 tunnel:none", "vlan:1-4095 !tunnel:gre,vxlan"),
        ("tunnel_id>0 tos:184", "tunnel!=none tos>=184 tos<185"),
        ("icmp:0", "proto:icmp dport:0-255"),
        ("!icmp:ECHO-reply/53,0/80", "!proto:icmp or !dport:53,80"),
        ("id:53-80", "proto:1,58 sport:53-80"),
        ("id>53", "proto:icmp sport>53"),
        ("dscp:ef", "tos:184"),
        ("dscp:EF,cs0 tcp", "tcp"),
        ("dscp!=46", "dscp:0"),
        ("flags=0", "!flags:F,S,R,P,A,U"),
        ("bytes>1K", "bytes>1kB"),
        ("rtt>50", "rtt>50ms"),
        ("rtt:1-50", "rtt>=1ms rtt<=0.05s"),
        ("idle<5", "idle<5s"),
        ("host:EXAMPLE.org", "host:/example\\.org/"),
        ('host:"example"', "host:/example/"),
        ("host:/example/,10.0.0.0", "host:10.0.0.0 or host:/mail|www/"),
        ("src!=10.0.0.0", "!src:10.0.0.0"),
        ("dead::beef", "net:dead::beef"),
    ],
)  # fmt: skip
def test_there_is_more_than_one_way_to_say_it(text: str, same: str) -> None:
    assert passing(text, SAVED) == passing(same)
    assert text == "dead::beef" or 0 < len(passing(same)) < SIZE


def test_what_is_not_known_is_neither_more_nor_less() -> None:
    unknown = np.flatnonzero(np.isnan(RTTS)).tolist()
    assert unknown
    assert passing("!(rtt>=0 or rtt<0)") == passing("!rtt:0-100s") == unknown


def test_names_that_become_known_count_from_then_on() -> None:
    names = Known()
    names.names.clear()
    table = RowTable(ROWS, {}, names)
    found = parse("host:/example/", LIVE_FLOWS)
    assert not found.mask(table).any()
    names.names.update(Known().names)
    assert not found.mask(table).any()
    names.version = 2
    assert found.mask(table).tolist() == parse("host:/example/", LIVE_FLOWS).mask(TABLE).tolist()


def test_no_more_names_are_asked_for_than_a_name_server_bears() -> None:
    asked = []

    class Counted(Known):
        def name(self, address: str) -> str:
            asked.append(address)
            return ""

    rows = np.zeros(5000, LIVE)
    rows["version"] = 4
    rows["source"][:, 1:3] = np.arange(5000)[:, None] >> np.array([8, 0]) & 255
    found = parse("src:/example/", LIVE_FLOWS)
    for _ in range(3):
        found.mask(RowTable(rows, {}, Counted()))
    assert len(asked) == 1000


def test_where_no_names_are_known_a_host_has_an_address() -> None:
    with pytest.raises(TextError, match="names of hosts are not known here: 'www' "):
        parse("host:www", WINDOW_FLOWS)
    found = parse(r"host:/^10\.0\.1\./", WINDOW_FLOWS).mask(TABLE)
    assert found.tolist() == parse("net:10.0.1.0/24", WINDOW_FLOWS).mask(TABLE).tolist()


def test_each_kind_of_rows_gets_the_terms_that_it_knows() -> None:
    flows, hops = parts("dport:443 rtt>50 (bytes>1k or udp)", (WINDOW_FLOWS, ANSWERS))
    assert flows.missing == ("rtt>50",)
    assert hops.missing == ("(bytes>1k or udp)",)
    everything = parse("dport:443 (bytes>1k or udp)", WINDOW_FLOWS)
    assert flows.mask(TABLE).tolist() == everything.mask(TABLE).tolist()
    with pytest.raises(TextError, match=r"hops have no 'hopp' \(column 5\); did you mean hop"):
        parts("tcp hopp>5", (WINDOW_FLOWS, ANSWERS))
    # The field's own parser reports the wrong value.
    with pytest.raises(TextError, match="'x' is no unit here"):
        parts("rtt>50x", (WINDOW_FLOWS, ANSWERS))


def test_what_is_saved_is_looked_at_whatever_rows_it_is_for() -> None:
    check("hop<=5 severity:error whatever>3")
    with pytest.raises(TextError, match="is not closed"):
        check("(hop<=5")


def test_the_empty_filter_takes_all() -> None:
    for text in ("", "  \t"):
        assert not FlowFilter.parse(text)
        assert FlowFilter.parse(text).mask(TABLE).all()
    assert not Filter()
    assert math.prod(Filter().mask(ROWS).shape) == SIZE
