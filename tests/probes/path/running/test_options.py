"""Other options while paths are traced: the same flows go on, with a new probe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpf.errors import KernelError, UsageError
from probes.control import controller as controllers
from probes.control.builtin_probes import PATH_PROBE, BuiltinEntry
from probes.path.options import Guard, Guarded, PathOptions, TracedFlow
from probes.path.probe import PathProbe
from tests.probes.path.conftest import Host, MakeHost
from tests.probes.path.wire.frames import PEER, UDP

FLOW = TracedFlow(UDP, 40000, 9)


def traced(host: Host) -> list[tuple[str, tuple[TracedFlow, ...]]]:
    return [(each.destination, each.flows) for each in host.controller.traced()]


@pytest.mark.slow
def test_running_traces_start_again_and_their_last_probes_are_told(make_host: MakeHost) -> None:
    host = make_host(PathOptions(rate=100_000, timeout=60))
    controller = host.controller
    controller.trace(PEER[4])
    controller.trace(PEER[6], FLOW)
    before = traced(host)
    flow = host.open(PEER[4])
    host.send(0.3, flow)
    sent = sum(each.sent for each in controller.traced())
    assert sent > 0
    options = replace(controller.path_options, guard=Guard.NONE, guarded=Guarded.ALL)
    controller.path_options = options
    assert traced(host) == before
    assert len(host.rows()) == sent
    assert [each.sent for each in controller.traced()] == [0, 0]
    host.send(0.3, flow)
    assert controller.traced()[0].sent > 0
    [info] = controller.probes()
    assert controller.path_options == options
    # The same again changes nothing.
    controller.path_options = options
    assert controller.traced()[0].sent > 0
    assert controller.probes()[0].window >= info.window


@pytest.mark.slow
def test_what_is_impossible_or_would_lose_an_edited_source_is_refused(make_host: MakeHost) -> None:
    host = make_host()
    controller = host.controller
    controller.trace(PEER[4])
    usual = controller.path_options
    with pytest.raises(UsageError, match="a rate of 0"):
        controller.path_options = replace(usual, rate=0)
    [info] = controller.probes()
    assert info.config.egress is not None
    egress = replace_source(info.config.egress.source)
    edited = info.config.model_copy(
        update={"egress": info.config.egress.model_copy(update={"source": egress})}
    )
    controller.replace(edited)
    with pytest.raises(UsageError, match="would replace the edited source of probe path"):
        controller.path_options = replace(usual, guarded=Guarded.ALL)
    controller.roll_back("path")
    controller.path_options = replace(usual, guarded=Guarded.ALL)
    assert controller.path_options.guarded is Guarded.ALL
    controller.read_only = "started with --read-only"
    with pytest.raises(UsageError, match="read only"):
        controller.path_options = usual


def replace_source(source: str) -> str:
    return f"/* edited */\n{source}"


def test_a_failed_start_brings_the_options_before_back(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host()
    controller = host.controller
    controller.trace(PEER[4])
    controller.trace(PEER[6], FLOW)
    before, usual = traced(host), controller.path_options

    def prepare(host: object, interface: object, options: PathOptions) -> object:
        if options.guarded is Guarded.ALL:
            raise KernelError("out of memory")
        return PATH_PROBE.prepare(host, interface, options)  # type: ignore[arg-type]

    broken: BuiltinEntry[PathProbe, PathOptions] = replace(PATH_PROBE, prepare=prepare)  # type: ignore[arg-type]
    monkeypatch.setattr(controllers, "PATH_PROBE", broken)
    with pytest.raises(KernelError, match="out of memory"):
        controller.path_options = replace(usual, guarded=Guarded.ALL)
    assert controller.path_options == usual
    assert traced(host) == before


def test_without_a_trace_they_are_those_of_the_next_one(make_host: MakeHost) -> None:
    host = make_host()
    host.controller.path_options = PathOptions(rate=7)
    assert host.controller.probes() == ()
    host.controller.trace(PEER[4])
    assert host.controller.path_options.rate == 7
