"""Policies: valid ones, refused ones with their messages, and the short form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bpf.errors import UsageError
from probes.monitor.options import Input, MonitorOptions, Receiver
from probes.monitor.policy import BUILT_IN, Policy, check_names, load, resolve

ROOT = Path(__file__).parents[4]
WHOLE = """\
application = ["mine.toml"]

[monitor]
bits = 10
interval = 0.5
input = "telemetry"
seed = "fleet"
offload = true

[[monitor.receivers]]
source = "192.0.2.1"
source_port = 5000
destination = "192.0.2.2"
destination_port = 5001

[profiles]
web = ["half_open", "mine"]

[[policy]]
name = "flood"
condition = "flows > 10000 and udp_packets / packets > 80%"
deactivate = "flows < 5000"
hold = "1.5s"
cooldown = "2m"
select = ["proto:udp dst:192.0.2.0/24", "dport:53"]
run = ["web", "dns", "trace:5"]

[[policy]]
name = "books"
mode = "permanent"
run = ["accounting"]

[[policy]]
name = "by-hand"
run = ["trace"]
"""
MINE = """\
name = "mine"

[ingress]
hook = "monitor"
source = "int mine(struct xdp_md *ctx) { return XDP_PASS; }"
"""


def written(folder: Path, text: str, name: str = "policies.toml") -> Path:
    (folder / "mine.toml").write_text(MINE)
    (folder / name).write_text(text)
    return folder / name


def test_a_toml_file_and_the_same_in_json_are_the_same_policies(tmp_path: Path) -> None:
    """S2.12, S2.16, S2.23: everything that a file has."""
    file = load(written(tmp_path, WHOLE))
    text = json.dumps(file.model_dump(mode="json", exclude_defaults=True))
    again = load(written(tmp_path, text, "policies.json"))
    assert again == file
    assert [each.name for each in again.applications] == ["mine"]

    flood, books, by_hand = file.policy
    assert flood == Policy(
        name="flood",
        mode="triggered",
        condition="flows > 10000 and udp_packets / packets > 80%",
        deactivate="flows < 5000",
        hold=1.5,
        cooldown=120,
        select=("proto:udp dst:192.0.2.0/24", "dport:53"),
        run=("web", "dns", "trace:5"),
    )
    assert (books.mode, by_hand.mode) == ("permanent", "operator")
    assert file.profiles == {"web": ("half_open", "mine")}
    assert [each.origin for each in file.applications] == [str(tmp_path / "mine.toml")]
    receiver = Receiver("192.0.2.1", 5000, "192.0.2.2", 5001)
    assert MonitorOptions(**file.monitor) == MonitorOptions(
        bits=10,
        interval=0.5,
        input=Input.TELEMETRY,
        receivers=(receiver,),
        seed="fleet",
        offload=True,
    )


def test_an_empty_file_has_no_policies_and_a_monitor_as_always(tmp_path: Path) -> None:
    file = load(written(tmp_path, ""))
    assert file.policy == ()
    assert MonitorOptions(**file.monitor) == MonitorOptions()


def test_what_runs_is_each_application_once_in_the_order_of_the_names(tmp_path: Path) -> None:
    file = load(written(tmp_path, WHOLE))
    flood, books, by_hand = file.policy
    assert resolve(flood, file.profiles) == (("half_open", "mine", "dns"), 5)
    assert resolve(books, file.profiles) == (("accounting",), 0)
    assert resolve(by_hand, file.profiles) == ((), 3)
    twice = Policy(name="x", run=("mine", "trace", "web", "mine", "trace:2"))
    assert resolve(twice, file.profiles) == (("mine", "half_open"), 3)


NAMED = '[[policy]]\nname = "a"\n'
RUNS = 'run = ["dns"]\n'
A = f'{NAMED}condition = "flows > 5"\n{RUNS}'
MALFORMED = {
    "no condition where one is needed": (
        f'{NAMED}mode = "triggered"\n{RUNS}',
        "1:1: policy[0].condition: it is missing; mode triggered needs one",
    ),
    "a condition where there is none": (
        f'{A}mode = "permanent"\n',
        "3:13: policy[0].condition: mode permanent has none; triggered has",
    ),
    "a cool-down of an operator's": (
        f"{NAMED}{RUNS}cooldown = 5\n",
        "4:12: policy[0].cooldown: mode operator has none; triggered has",
    ),
    "a misspelled metric": (
        A + A.replace('"a"', '"b"').replace("flows", "packets > 9 and flws"),
        "7:30: policy[1].condition: 'flws' is no metric; did you mean flows?",
    ),
    "half a hysteresis": (
        f'{A}deactivate = "flows < 5 and bites < 1"\n',
        "5:29: policy[0].deactivate: 'bites' is no metric; did you mean bytes?",
    ),
    "a misspelled key": (
        f'{A}cool_down = "5s"\n',
        "5:1: policy[0].cool_down: no such key; did you mean cooldown?",
    ),
    "a misspelled mode": (
        f'{A}mode = "permanant"\n',
        "5:8: policy[0].mode: 'permanant' is not one of its values; did you mean permanent?",
    ),
    "a duration without a unit that is one": (
        f'{A}hold = "5 parsecs"\n',
        "5:11: policy[0].hold: 'parsecs' is no unit here; units are ns, us, ms, s, m, h, d",
    ),
    "a negative duration": (
        f"{A}hold = -1\n",
        "5:8: policy[0].hold: must be greater than or equal to 0, not -1",
    ),
    "no end": (
        f'{A}cooldown = "25h"\n',
        "5:12: policy[0].cooldown: must be less than or equal to 86400, not '25h'",
    ),
    "nothing to run": (NAMED + "run = []\n", "3:7: policy[0].run: must not be empty"),
    "no run at all": (NAMED, "1:1: policy[0].run: it is missing"),
    "an application that is none": (
        f'{NAMED}run = ["heavy_hiters"]\n',
        "3:8: policy[0].run[0]: there is no application 'heavy_hiters';"
        " did you mean heavy_hitters?",
    ),
    "traces of nothing": (
        f'{NAMED}run = ["trace:0"]\n',
        "3:8: policy[0].run[0]: '0' is not a number of flows, 1 to 16",
    ),
    "something else with a number": (
        f'{NAMED}run = ["dns:3"]\n',
        "3:8: policy[0].run[0]: 'dns:3' is not a name;"
        " up to 64 letters, digits, _ . and -, the first a letter or _",
    ),
    "a filter that is none": (
        f'{A}select = ["dport:53", "dprt:53"]\n',
        "5:24: policy[0].select[1]: flows have no 'dprt'; did you mean dport?",
    ),
    "a filter of what is not": (
        f'{A}select = ["proto:udp !rate>1M"]\n',
        "5:23: policy[0].select[0]: 'rate>1M' can't select packets; selections take protocols,"
        " ports, ICMP types, addresses, IP versions, TCP flags and VLANs",
    ),
    "a direction": (
        f'{A}select = ["dir:in"]\n',
        "5:12: policy[0].select[0]: 'dir:in' can't select packets; selections take protocols,"
        " ports, ICMP types, addresses, IP versions, TCP flags and VLANs",
    ),
    "an empty filter": (
        f'{A}select = [" "]\n',
        "5:11: policy[0].select[0]: must not be empty; leave select out for every packet",
    ),
    "a contradiction": (
        f'{A}select = ["proto:udp proto:tcp"]\n',
        "5:11: policy[0].select[0]: 'proto:udp proto:tcp' passes no packet",
    ),
    "one filter": (f'{A}select = "dport:53"\n', "5:10: policy[0].select: must be a list"),
    "two of one name": (A + A, "6:8: policy[1].name: there are two policies 'a'"),
    "too many": (
        "".join(A.replace('"a"', f'"a{n}"') for n in range(41)),
        "1:1: policy: there are 41, and can be 40",
    ),
    "a profile of what is none": (
        '[profiles]\nweb = ["dns", "trace"]\n',
        "2:15: profiles.web[1]: there is no application 'trace';"
        " there are accounting, dns, half_open, heavy_hitters, port_scan, tcp_health",
    ),
    "an empty profile": ("[profiles]\nweb = []\n", "2:7: profiles.web: must not be empty"),
    "a profile that hides an application": (
        '[profiles]\ndns = ["dns"]\n',
        "2:7: profiles.dns: an application has this name",
    ),
    "an application's file that is none": (
        'application = ["mime.toml"]\n',
        "1:16: application[0]: mime.toml: No such file or directory; did you mean mine.toml?",
    ),
    "an application that is a probe": (
        'application = ["probe.toml"]\n',
        "1:16: application[0]: probe.toml: ingress.hook: it is another probe's;"
        ' an application has hook = "monitor"',
    ),
    "an application twice": (
        'application = ["mine.toml", "mine.toml"]\n',
        "1:29: application[1]: the name 'mine' is taken",
    ),
    "too few bits": ("[monitor]\nbits = 3\n", "1:1: monitor: bits = 3 is not between 4 and 14"),
    "no whole number of bits": (
        "[monitor]\nbits = 12.5\n",
        "2:8: monitor.bits: must be a valid integer, not 12.5",
    ),
    "too long an interval": (
        "[monitor]\ninterval = 301\n",
        "1:1: monitor: an interval of 301 s is not between 0.01 and 300",
    ),
    "telemetry from nowhere": (
        '[monitor]\ninput = "telemetry"\n',
        "1:1: monitor: telemetry without receivers; say which datagrams have records",
    ),
    "a receiver that can't be": (
        '[[monitor.receivers]]\nsource = "::1"\nsource_port = 1\n'
        'destination = "192.0.2.1"\ndestination_port = 1\n',
        "1:1: monitor.receivers[0]: ::1 and 192.0.2.1 differ in version",
    ),
    "no table": ('policy = "flows > 5"\n', "1:10: policy: must be a list"),
    "no TOML": ("policy = [\n", "2:1: Invalid value"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    """With the file, the line, the column and the key."""
    (tmp_path / "probe.toml").write_text(MINE.replace('hook = "monitor"\n', ""))
    text, said = MALFORMED[case]
    with pytest.raises(UsageError) as refusal:
        load(written(tmp_path, text))
    assert str(refusal.value).replace(f"{tmp_path}/", "") == f"policies.toml:{said}"


def test_a_file_is_known_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"policies\.yaml: a file of policies ends in"):
        load(written(tmp_path, "", "policies.yaml"))


def test_names_are_checked_against_what_is_loaded() -> None:
    """As the controller does for a policy that comes while it runs."""
    policy = Policy(name="x", run=("mine", "web", "trace:2"))
    check_names(policy, ["mine", "dns"], {"web": ("dns",)})
    with pytest.raises(UsageError, match="there is no application 'mine'; did you mean mime"):
        check_names(policy, ["mime", "dns"], {"web": ("dns",)})
    with pytest.raises(
        UsageError, match="there is no application 'web'; there are dns, mine, trac"
    ):
        check_names(policy, ["mine", "dns"], {})
    with pytest.raises(UsageError, match=r"profiles\.trace: path tracing has this name"):
        check_names(policy, ["dns", "mine"], {"web": (), "trace": ("dns",)})


def test_the_built_in_applications_are_there() -> None:
    folder = ROOT / "probes" / "monitor" / "applications"
    assert sorted(path.stem for path in folder.glob("*.toml")) == sorted(BUILT_IN)
