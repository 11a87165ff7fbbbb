"""Named filters of a file: policies have their texts, and a mistake is told where it stands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bpf.compiler import Compiler
from bpf.errors import TextError, UsageError
from probes.flow.filter import FlowFilter
from probes.monitor.condition import Condition
from probes.monitor.engine import Engine
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy, load
from probes.monitor.records import METRIC
from probes.monitor.selected import SelectedMetric
from tests.probes.monitor.bed import Bed, application, frame, tcp

FILTERS = """\
[filters]
web_or_dns = "dport:80,443 or @dns"
dns = "udp dport:53"
small = "packets<=3"
datagrams = "udp !port:53 sport!=443"
unused = "vlan:7"
"""


def file_of(folder: Path, text: str) -> Path:
    path = folder / "policies.toml"
    path.write_text(text)
    return path


def told(folder: Path, text: str) -> str:
    path = file_of(folder, text)
    with pytest.raises(UsageError) as refusal:
        load(path)
    lines = []
    for each in refusal.value.mistakes:
        assert isinstance(each, TextError)
        lines += [str(each), each.marked]
    return "\n".join([*lines, ""]).replace(f"{path}:", "")


def test_policies_have_the_texts_of_named_filters(tmp_path: Path) -> None:
    text = (
        FILTERS
        + """
[[policy]]
name = "a"
condition = '''
    rate(packets on @datagrams) > 5
    and flows(on @datagrams dport:9)
        / flows on "!@web_or_dns" > 2'''
deactivate = "packets on @dns < 5 or flows < 9"
suspects = "@datagrams @small"
select = ["@datagrams", "tcp @web_or_dns", "icmp  or gre"]
run = ["dns"]
"""
    )
    policy = load(file_of(tmp_path, text)).policy[0]
    assert policy.condition == (
        "rate(packets on (udp !port:53 sport!=443)) > 5 and"
        " flows on (udp !port:53 sport!=443 dport:9)"
        " / flows on (!(dport:80,443 or (udp dport:53))) > 2"
    )
    assert policy.deactivate == "packets on (udp dport:53) < 5 or flows < 9"
    assert policy.suspects == "udp !port:53 sport!=443 packets<=3"
    assert policy.select == (
        "udp !port:53 sport!=443",
        "tcp (dport:80,443 or (udp dport:53))",
        "icmp or gre",
    )
    assert SelectedMetric("packets", "udp !port:53 sport!=443") in policy.metrics
    assert Policy.parse(policy.dump(), "request") == policy
    assert FlowFilter.parse("!@x tcp", {"x": "!udp (ip:4 port!=5)"}).canonical == (
        "!(!udp ip:4 port!=5) tcp"
    )


def test_mistakes_are_told_once_where_they_stand(tmp_path: Path) -> None:
    text = """\
[filters]
user = "tcp @wrong or @number"
wrong = "udp sprot:5"
few = "packets<=3"
one = "@two"
two = "udp or @one"
blank = ""
number = 5

[[policy]]
name = "a"
condition = '''
    packets on (@user @few) > 5
    or flows on @wrong > 5'''
suspects = "@blank or @one or @few"
select = ["@two", "udp @few", "@fwe", "@number"]
run = ["dns"]
"""
    assert (
        told(tmp_path, text)
        == """\
3:14: filters.wrong: flows have no 'sprot'; did you mean sport?
wrong = "udp sprot:5"
             ^
6:15: filters.two: in @one, '@two': in @two, 'udp or @one': @one is saved as a filter of itself
two = "udp or @one"
              ^
7:9: filters.blank: must not be empty
blank = ""
        ^
8:10: filters.number: must be a valid string, not 5
number = 5
         ^
16:24: policy[0].select[1]: 'packets<=3' can't select packets; selections take protocols, ports, \
ICMP types, addresses, IP versions, TCP flags and VLANs
select = ["@two", "udp @few", "@fwe", "@number"]
                       ^
16:32: policy[0].select[2]: no filter is saved as 'fwe'; did you mean @few?
select = ["@two", "udp @few", "@fwe", "@number"]
                               ^
"""
    )


def test_without_a_file_there_are_no_names() -> None:
    text = "a: packets on @dns > 5 -> dns"
    with pytest.raises(TextError, match="no filter is saved as 'dns'") as refusal:
        Policy.parse_short(text)
    assert refusal.value.column == text.index("@") + 1
    assert refusal.value.hint.endswith("for policies, [filters] of their file")


def test_the_length_of_a_condition_is_that_of_its_written_text(tmp_path: Path) -> None:
    policy = '\n[[policy]]\nname = "a"\nrun = ["dns"]\ncondition = "{}"\n'
    ports = ",".join(map(str, range(1000, 1100)))
    filters = f'[filters]\nports = "udp dport:{ports}"\nmany = "sport:1 {"or @ports " * 15}"\n'
    condition = " or ".join(f"{name} on @ports > {10**60}" for name in ("packets", "bytes"))
    condition = " and ".join([condition] * 10)
    assert len(condition) < 2000
    stored = load(file_of(tmp_path, filters + policy.format(condition))).policy[0]
    assert len(stored.condition) > 8000
    assert Condition.stored(stored.condition).text == stored.condition
    assert Policy.parse(stored.dump(), "request") == stored
    for refused, words in (
        (policy.format("flows > 5" + " and flows > 5" * 200), "2000"),
        (policy.format(" and ".join(f"packets on @ports > {n}" for n in range(60))), "16000"),
        ("all = 'tcp (ip:4 or @many) (ip:6 or @many)'" + policy.format(condition), "8192"),
    ):
        assert f"longer than {words} characters" in told(tmp_path, filters + refused)


def test_conditions_are_shown_with_the_names(tmp_path: Path) -> None:
    """D6: an alarm's cause can be read; the stored texts need no file."""
    path = tmp_path / "p.toml"
    path.write_text("""
        [monitor]
        trusted = ["192.0.2.9", "10.1.0.0/16"]
        [filters]
        syn = "flags=S"
        web = "@syn dport:80,443"
        [[policy]]
        name = "p"
        condition = "rate(flows on @web) > 3 * baseline(10m, 5/s) and syn_packets > 5"
        deactivate = "ports on @syn < 2"
        run = ["dns"]
        select = ["@web"]
        """)
    file = load(path)
    (policy,) = file.policy
    shown = "rate(flows on @web) > 3 * baseline(10m, 5/s) and syn_packets > 5"
    assert policy.when == shown
    assert policy.named(policy.deactivate) == "ports on @syn < 2"
    assert "@" not in policy.condition + policy.deactivate + "".join(policy.select)
    again = Policy.parse(json.loads(json.dumps(policy.dump())), "test")
    assert (again, again.when) == (policy, shown), "also by REST"
    assert Policy.parse_short(policy.to_short()).condition == policy.condition
    engine = Engine()
    engine.set(policy, 0)
    engine.window(np.zeros((), METRIC), 10**9, 1.0, {})
    (status,) = engine.policies()
    assert status.outcome
    assert status.outcome.comparisons[0].text == "rate(flows on @web) > 3 * baseline(10m, 5/s)"
    assert file.monitor["trusted"] == ("192.0.2.9", "10.1.0.0/16")


def test_packets_of_trusted_hosts_count_for_no_policy(compiler: Compiler) -> None:
    """A scanner of your own, a monitoring system."""
    options = MonitorOptions(trusted=("192.0.2.9", "10.1.0.0/16"))
    with Bed(compiler, options) as bed:
        bed.set("p: syn_packets > 2 and ports on flags:S > 2 and sources > 0 -> counting on tcp")
        bed.add(application("counting"))
        bed.window()
        for source in ("192.0.2.9", "10.1.7.7", "192.0.2.8"):
            for port in range(1, 4 - (source == "192.0.2.8")):
                bed.run(frame(source, layer=tcp(dport=port)))
        tables = bed.window()
        assert tables["metrics"]["syn_packets"] == [8], "the tables have all packets"
        assert not len(tables.get("triggers", ()))
        bed.run(frame("10.1.7.7", layer=tcp(dport=9)))
        for port in range(1, 4):
            bed.run(frame("192.0.2.8", layer=tcp(dport=port)))
        (begun,) = bed.window()["triggers"]
        assert begun["cause"].decode().startswith("syn_packets 3 > 2, ports on flags:S 3 > 2")
        for source in ("10.1.7.7", "192.0.2.8"):
            bed.run(frame(source, layer=tcp()))
        assert bed.counted("counting")[0] == 1
