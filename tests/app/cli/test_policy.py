"""The monitor on the command line: status, meaning of policies, refusals."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from app.cli.main import cli
from app.cli.subcommands.policy import EXAMPLES
from app.run.monitor import Policies, receiver_of
from app.run.options import Options
from app.run.spec import run_spec
from app.run.start import _watch, start
from bpf.attach.attachment import Hook
from bpf.errors import UsageError
from probes.control.controller import Controller
from probes.flow.options import FlowOptions
from probes.monitor.options import Input, MonitorOptions, Receiver, Trust
from probes.monitor.policy.ready import purposes
from tests.support.runs import deck_here

FLOOD = "flood: flows > 500 -> dns"
APPLICATION = """\
name = "mine"
[ingress]
hook = "monitor"
source = "int mine(struct xdp_md *ctx) { return 2; }"
"""
FILE = """\
application = ["mine.toml"]
[monitor]
bits = 8
seed = "fleet"
[profiles]
both = ["dns", "mine"]
[[policy]]
name = "busy"
condition = "rate(bytes) > 1Gbit/s"
run = ["both", "trace:2"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    """Writes a file of policies, beside which there is an application; its name."""
    (tmp_path / "mine.toml").write_text(APPLICATION)

    def write(text: str = FILE) -> str:
        path = tmp_path / "policies.toml"
        path.write_text(text)
        return str(path)

    return write


def monitor_of(**options: Any) -> MonitorOptions:
    flow = {name: options.pop(name) for name in ("interval", "ingress") if name in options}
    found = run_spec(Options("lo", flow=FlowOptions(**flow), **options), "1").monitor
    assert found is not None
    return found


def test_a_seed_file_is_secret_and_goes_before_the_policies(
    file: Callable[[str], str], tmp_path: Path
) -> None:
    secret, key = tmp_path / "seed", "0123456789abcdef0123456789abcdef"
    secret.write_text(f"{key}\n")
    secret.chmod(0o640)
    with pytest.raises(UsageError, match=r"the seed in .*: others can read it; chmod 600"):
        monitor_of(seed_file=str(secret))
    secret.chmod(0o600)
    assert monitor_of(seed_file=str(secret)).seed == key
    assert monitor_of(seed_file=str(secret), policies=file(FILE)).seed == key


@pytest.mark.parametrize(
    "given",
    [
        {"monitor": True}, {"policy": [FLOOD]}, {"bits": 12}, {"input": Input.REGULAR},
        {"offload": True},
    ],
)  # fmt: skip
def test_any_of_its_options_runs_it(given: Any) -> None:
    """S2.5: always on, also without any policy."""
    expected = MonitorOptions(offload="offload" in given)
    assert monitor_of(**given) == expected
    # Nothing else need run.
    only = Options(only=True, **given)
    only.check()
    assert run_spec(replace(only, interface="lo"), "1").options.only
    with pytest.raises(UsageError, match=r"nothing for the monitor to watch; give -i NAME"):
        run_spec(only, "1")


def test_without_them_there_is_none() -> None:
    watch = run_spec(Options("lo"), "1")
    assert (watch.monitor, watch.policies) == (None, Policies())


def test_every_option_arrives() -> None:
    receivers = ["192.0.2.1:5000-192.0.2.2:6343", "[2001:db8::1]:1-[2001:db8::2]:65535"]
    found = monitor_of(
        bits=4, input=Input.TELEMETRY, receiver=receivers, offload=True, ingress="tc", interval=0.5
    )
    assert found == MonitorOptions(
        4,
        0.5,
        Input.TELEMETRY,
        (
            Receiver("192.0.2.1", 5000, "192.0.2.2", 6343),
            Receiver("2001:db8::1", 1, "2001:db8::2", 65535),
        ),
        Hook.TC_INGRESS,
        "",
        True,
    )


def test_options_go_before_the_file_but_its_interval_before_theirs(
    file: Callable[[str], str],
) -> None:
    found = monitor_of(policies=file(FILE), interval=5)
    assert (found.bits, found.seed, found.interval) == (8, "fleet", 5)
    slow = FILE.replace("bits = 8", "bits = 8\ninterval = 2")
    found = monitor_of(policies=file(slow), interval=5, bits=10)
    assert (found.bits, found.seed, found.interval) == (10, "fleet", 2)


def test_what_a_run_starts_with(file: Callable[[str], str], tmp_path: Path) -> None:
    """S2.12, S2.16: policies of both, profiles, applications of the file and among the probes."""
    own = tmp_path / "own.toml"
    own.write_text(APPLICATION.replace("mine", "own"))
    options = Options(
        policies=file(FILE), policy=["x: always -> own"], probe=[str(own)], only=True, cpu="off"
    )
    calls: list[Any] = []

    class Recorder:
        @property
        def paths(self) -> Recorder:
            return self

        def __getattr__(self, name: str) -> Any:
            return lambda *given, **named: calls.append((name, given, named))

    with ExitStack() as stack:
        start(cast(Controller, Recorder()), run_spec(replace(options, interface="lo"), "1"), stack)
    # Limits come first, then paths: a policy may trace some at once.
    assert [name for name, _, _ in calls] == [
        "configure_programs", "configure", "watch_metrics",
    ]  # fmt: skip
    _, (interface, monitor), named = calls[2]
    assert (interface, monitor.bits) == ("lo", 8)
    assert [policy.name for policy in named["policies"]] == ["busy", "x"]
    assert named["profiles"] == {"both": ("dns", "mine")}
    assert [(each.name, each.ingress.interface) for each in named["applications"]] == [
        ("mine", "lo"), ("own", "lo"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "watches"),
    [
        ({}, True),
        ({"trust": Trust(["192.0.2.0/24"])}, True),
        ({"policies": "none"}, False),
        ({"policies": "shipped"}, False),
        ({"monitor": True}, False),
        ({"policy": [FLOOD]}, False),
        ({"only": True, "api": True}, False),
    ],
)
def test_a_shown_run_watches_unless_the_user_chooses(given: Any, watches: bool) -> None:
    options = Options(**given)
    spec = run_spec(replace(options, interface="lo"), "1", is_shown=True)
    assert spec.watches is watches
    hidden = run_spec(replace(options, interface="lo"), "1")
    assert not hidden.watches
    assert (hidden.monitor is None) == (
        watches or given in ({"policies": "none"}, {"only": True, "api": True})
    )
    assert spec.policies == hidden.policies
    if watches:
        assert not spec.policies.policies
        assert spec.monitor
        assert spec.monitor.trusted == tuple(options.trust.trusted)


def test_shipped_policies_by_name_and_a_host_that_is_none() -> None:
    spec = run_spec(Options("lo", policies="shipped"), "1")
    assert len(spec.policies.policies) > 30
    with pytest.raises(UsageError, match="'host' is no address or network"):
        Options(trust=Trust(["host"])).check()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bits": 3}, "bits = 3 is not between 4 and 14"),
        ({"bits": 0}, "bits = 0 is not between 4 and 14"),
        ({"input": Input.TELEMETRY}, "telemetry without receivers"),
        ({"receiver": ["192.0.2.1:1-192.0.2.2:2"]}, "receivers are for telemetry"),
        (
            {"policy": ["flood: flows > -> dns"]},
            "policy 'flood': condition: nothing follows '>' (column 15)",
        ),
        (
            {"policy": ["flood: flows > 1 -> dsn"]},
            "no application 'dsn' (column 21); did you mean dns?",
        ),
        ({"policy": [FLOOD, FLOOD]}, "there are two policies 'flood'"),
        ({"policies": "none.toml"}, "none.toml: No such file or directory"),
    ],
)
def test_what_can_not_be_is_refused(given: Any, words: str) -> None:
    """Of issue 5: a bad expression is refused with the column."""
    with pytest.raises(UsageError) as caught:
        run_spec(Options("lo", **given), "1")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "", "192.0.2.1:1", "192.0.2.1-192.0.2.2", "192.0.2.1:1-192.0.2.2:65536", "a:1-b:2",
        "2001:db8::1:1-2001:db8::2:2", "[192.0.2.1:1-192.0.2.2]:2", "192.0.2.1:1-[2001:db8::2]:2",
        "192.0.2.1:\u0661-192.0.2.2:2",
    ],
)  # fmt: skip
def test_what_is_no_receiver_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="receiver"):
        receiver_of(text)


def test_the_interface_of_an_application_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(APPLICATION.replace("hook", 'interface = "none-such"\nhook'))
    with pytest.raises(UsageError, match="no interface 'none-such'"):
        run_spec(Options("lo", probe=[str(path)], monitor=True), "1")


def check(*arguments: str) -> None:
    cli(["policy", "check", *arguments], standalone_mode=False)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (
            "udp: flows>10k and udp_packets/packets > 80% -> dns on port:53 or net:10.0.0.0/8",
            "udp: active when flows > 10k and udp_packets / packets > 80% (flows, a ratio; in a "
            "window of 1 s); until that does not hold; runs dns on packets of port:53 or "
            "net:10.0.0.0/8",
        ),
        (
            "odd: rate(bytes) > 5*baseline(60s) until flows < 300 hold 500ms cooldown 2m -> trace",
            "odd: active when rate(bytes) > 5 * baseline(60s) (bytes per second; in windows of 1 s,"
            " of up to 60 s); until flows < 300 (flows; in a window of 1 s); for 0.5 s at least; "
            "then not looked at for 120 s; traces the paths of the 3 top flows of all packets",
        ),
        ("all: always -> accounting", "all: always active; runs accounting on all packets"),
        (
            "op: operator -> accounting, trace:1",
            "op: active when an operator says so; runs accounting on all packets; traces the paths "
            "of the top flow of all packets",
        ),
    ],
)
def test_what_a_policy_means(text: str, meaning: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Units and windows explicit."""
    check(text)
    assert capsys.readouterr().out == f"{meaning}\n"


def test_what_the_policies_of_a_file_mean(
    file: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    check(file(FILE.replace("bits = 8", "interval = 0.2")))
    assert capsys.readouterr().out == (
        "busy: active when rate(bytes) > 1Gbit/s (bytes per second; in a window of 0.2 s); until "
        "that does not hold; runs dns, mine on all packets; traces the paths of the "
        "2 top flows of all packets\n"
    )


def test_examples_in_the_help_mean_something(
    file: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file(FILE)
    monkeypatch.chdir(tmp_path)
    examples = [shlex.split(line) for line in EXAMPLES.splitlines() if "probedeck" in line]
    for example in examples:
        cli(example[1:], standalone_mode=False)
    assert capsys.readouterr().out.count(": active when ") == len(examples) == 4


def test_an_application_from_a_file_is_known(
    file: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file(FILE)
    with pytest.raises(UsageError, match="no application 'mine'"):
        check("a: always -> mine")
    check("a: always -> mine", "--probe", str(tmp_path / "mine.toml"))
    assert capsys.readouterr().out == "a: always active; runs mine on all packets\n"


SHORT_MISTAKES = """\
probedeck: policy 'bä': name: 'bä' is not a name (column 1); up to 64 letters, digits, _ . and -, \
the first a letter or _
bä: packets > flows and 1 until flws < 5 hold 5 parsecs -> dns, trace:99 on udp port 53 or prot:6
^
probedeck: policy 'bä': condition: packets can't be compared with flows (column 13)
bä: packets > flows and 1 until flws < 5 hold 5 parsecs -> dns, trace:99 on udp port 53 or prot:6
            ^
probedeck: policy 'bä': deactivate: 'flws' is no metric (column 33); did you mean flows?
bä: packets > flows and 1 until flws < 5 hold 5 parsecs -> dns, trace:99 on udp port 53 or prot:6
                                ^
probedeck: policy 'bä': hold: 'parsecs' is no unit here (column 49); units are ns, us, ms, s, \
m, h, d
bä: packets > flows and 1 until flws < 5 hold 5 parsecs -> dns, trace:99 on udp port 53 or prot:6
                                                ^
probedeck: policy 'bä': select[0]: 'port' has no value (column 81); write port:443
bä: packets > flows and 1 until flws < 5 hold 5 parsecs -> dns, trace:99 on udp port 53 or prot:6
                                                                                ^
probedeck: policy 'bä': select[1]: flows have no 'prot' (column 92); did you mean proto?
bä: packets > flows and 1 until flws < 5 hold 5 parsecs -> dns, trace:99 on udp port 53 or prot:6
                                                                                           ^
probedeck: policy 'bä': run[1]: '99' is not a number of flows, 1 to 16 (column 65)
bä: packets > flows and 1 until flws < 5 hold 5 parsecs -> dns, trace:99 on udp port 53 or prot:6
                                                                ^
"""


def test_all_mistakes_of_a_text_are_told_with_carets() -> None:
    text = SHORT_MISTAKES.splitlines()[1]
    assert deck_here("policy", "check", text) == (2, "", SHORT_MISTAKES)


def test_all_mistakes_of_a_file_and_of_texts_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "policies.toml"
    path.write_text('[[policy]]\nname = "a"\ncondition = "flws > 5"\nrun = ["dsn"]\n')
    with pytest.raises(UsageError) as caught:
        run_spec(Options("lo", policies=str(path), policy=["b: flows > -> dns", FLOOD, FLOOD]), "1")
    assert [str(each) for each in caught.value.mistakes] == [
        f"{path}:3:14: policy[0].condition: 'flws' is no metric; did you mean flows?",
        f"{path}:4:8: policy[0].run[0]: there is no application 'dsn'; did you mean dns?",
        "policy 'b': condition: nothing follows '>' (column 11); a metric or a number should",
        "policy 'flood': name: there are two policies 'flood' (column 1)",
    ]


def test_a_shown_run_begins_with_every_shipped_policy() -> None:
    given: list[dict[str, Any]] = []

    class Watched:
        def watch_metrics(self, interface: str, options: MonitorOptions, **more: Any) -> None:
            given.append({"interface": interface, **more})

    _watch(cast("Controller", Watched()), "any", MonitorOptions())
    (watched,) = given
    assert [policy.name for policy in watched["policies"]] == list(purposes())
    assert watched["interface"] == "any"
    assert watched["late"]
