"""Outputs of a controller: added, watched and removed on its host, by REST and by the settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.api.address import Remote
from app.api.client import RemoteController
from app.api.server.listener import ApiListener
from app.api.sockets import Api
from app.config.load import load
from app.exporters.delivery import Outputs
from app.exporters.kinds import EXPORTERS, UrlPlace, parse
from app.exporters.ledger import TableKey
from app.exporters.options import OptionError
from app.run.options import SECTIONS
from bpf.errors import ProbedeckError, UsageError
from probes.control.controller import Controller
from probes.reports import OutputConfig, OutputState
from probes.snapshot import Event, Item
from tests.app.exporters.receiver import PACKETS, flows, kinds, made, until

SECRET = "kept://ana:hush@there:1/deep?key=hush"


@pytest.fixture(autouse=True)
def _kinds() -> Iterator[None]:
    with kinds():
        yield


@pytest.fixture
def controller() -> Iterator[Controller]:
    with Controller() as plane:
        plane.outputs = Outputs(plane)
        yield plane


def heard(controller: Controller) -> list[Item]:
    items: list[Item] = []
    controller.listen(items.append)
    return items


def test_outputs_share_the_items_and_fail_each_on_its_own(controller: Controller) -> None:
    events = heard(controller)
    outputs = controller.outputs
    assert isinstance(outputs, Outputs)
    for _ in range(2):
        outputs.add(OutputConfig("kept://there:1"))
    made["kept"].alive = False
    controller.publish(flows(1, 10))
    assert until(lambda: [each.delivered for each in outputs.status()][1] == 10)
    assert until(lambda: any(isinstance(each, Event) and each.phase == "begin" for each in events))
    controller.publish(flows(2, 5))
    with pytest.raises(UsageError, match="an output kept runs; remove it"):
        outputs.add(OutputConfig("kept://there:1", "kept"))
    ended = outputs.remove("kept")
    assert (ended.state, ended.undelivered) == (OutputState.ENDED, {"ended": 15})
    assert until(lambda: len(made["kept-2"].got) == 15)
    assert [each.name for each in outputs.status()] == ["kept", "kept-2"]
    totals = outputs.ledger.tables()[TableKey("flow", "eth0", "", "")]
    assert (totals.windows, totals.rows, totals.packets) == (2, 15, 15 * PACKETS)
    unsent = outputs.ledger.unsent("kept")
    assert (unsent.records, unsent.packets) == (15, 15 * PACKETS)
    with pytest.raises(UsageError, match="no output 'kept'"):
        outputs.remove("kept")
    outputs.close()
    assert made["kept-2"].closed == 1


@pytest.mark.slow
def test_rest_adds_watches_and_removes_outputs(controller: Controller, tmp_path: Path) -> None:
    socket, token = str(tmp_path / "s"), tmp_path / "token"
    token.write_text("x" * 32)
    token.chmod(0o600)
    api = Api("1", socket, listen="127.0.0.1:0", token=str(token))
    with ApiListener(controller, api) as listener:
        with RemoteController(Remote(f"unix:{socket}")) as remote:
            added = remote.outputs.add(OutputConfig(SECRET, "main", {"speed": "3"}))
            assert added.url == "kept://there:1/deep?speed=3"
            controller.publish(flows(1, 4))
            assert until(lambda: remote.outputs.status()[0].delivered == 4)
            with pytest.raises(UsageError, match="option speed: 'x' is not a whole number"):
                remote.outputs.add(OutputConfig("kept://there:1?speed=x"))
            with pytest.raises(ProbedeckError, match="there is an output main"):
                remote.outputs.add(OutputConfig("kept://there:1", "main"))
            with pytest.raises(UsageError, match="no output 'other'; there are main"):
                remote.outputs.remove("other")
            assert remote.outputs.remove("main").state is OutputState.ENDED
            assert remote.outputs.add(OutputConfig("keptlocal:/x")).name == "keptlocal"
        assert listener.address is not None
        host, port = listener.address
        with httpx.Client(base_url=f"http://{host}:{port}") as http:
            http.headers["authorization"] = f"Bearer {'x' * 32}"
            for url in ("keptlocal:/y", "http://127.0.0.1:1/?key=/etc/hostname"):
                refused = http.post("/v1/outputs", json={"url": url})
                assert refused.status_code == 403
                assert "programs or files of the host" in refused.json()["error"]
            line = {"line": "output.add keptlocal:/y"}
            assert http.post("/v1/commands", json=line).status_code == 403
            assert http.post("/v1/outputs", json={"uri": "x"}).status_code == 422
            assert http.get("/v1/outputs").json()[0]["undelivered"] == {}


def test_a_socket_of_a_group_adds_no_output_that_reaches_the_host(
    controller: Controller, tmp_path: Path
) -> None:
    """A member of the group would run programs with the rights of the service."""
    socket, ran = str(tmp_path / "s"), tmp_path / "ran"
    transport = httpx.HTTPTransport(uds=socket)
    with (
        ApiListener(controller, Api("1", socket, group="nogroup")),
        httpx.Client(base_url="http://x", transport=transport, trust_env=False) as http,
    ):
        refused = http.post("/v1/outputs", json={"url": f"command:/usr/bin/touch {ran}"})
        assert refused.status_code == 403
        assert refused.json()["error"] == "output command reaches programs or files of the host"
        line = {"line": f"output.add command:/usr/bin/touch {ran}"}
        assert http.post("/v1/commands", json=line).status_code == 403
        assert http.post("/v1/outputs", json={"url": "kept://there:1"}).status_code == 201
    assert [each.name for each in controller.outputs.status()] == ["kept"]


def test_every_kind_that_reaches_the_host_says_so() -> None:
    local = {scheme for scheme, kind in EXPORTERS.items() if kind.local} - {"keptlocal"}
    assert local == {"command", "journald", "jsonl", "parquet", "record", "syslog+unix"}
    # A kind without a host reaches this one.
    assert all(kind.local is (kind.place is not UrlPlace.HOST) for kind in EXPORTERS.values())


def test_credentials_appear_nowhere(controller: Controller) -> None:
    events = heard(controller)
    controller.outputs.add(OutputConfig(SECRET))
    made["kept"].alive = False
    controller.publish(flows(1, 1))
    assert until(lambda: controller.outputs.status()[0].state is OutputState.FAILING)
    with pytest.raises(UsageError) as twice:
        controller.outputs.add(OutputConfig(SECRET, "kept"))
    shown = [repr(parse(OutputConfig(SECRET))), str(twice.value), *map(repr, events)]
    shown.append(repr(controller.outputs.status()))
    for wrong in ("kept://ana:hush@", "kept://ana:hush@there", "kept://a:hush@b:1?speed=x", "hush",
                  "kept://a:hush@b:1?hush"):  # fmt: skip
        with pytest.raises(OptionError) as error:
            parse(OutputConfig(wrong))
        shown.append(str(error.value))
    assert not [text for text in shown if "hush" in text]


def test_mistakes_of_the_settings_name_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[[outputs]]\nurl = "kept://there:1"\nname = "main"\nspeed = 7\nowners = true\n\n'
        '[[outputs]]\nurl = "kept://there:1"\nspeeed = 7\n\n'
        '[[outputs]]\nname = "main"\nurl = "kept://there:1"\n\n'
        '[[outputs]]\nurl = "kept://there:1"\nactive = "7 years"\n\n'
        '[[outputs]]\nurl = "keept://there:1"\n\n'
        '[[outputs]]\nurl = "kept://there:1"\nowners = "perhaps"\n'
    )
    loaded = load(str(file), SECTIONS, {})
    assert [str(each).removeprefix(f"{file}:") for each in loaded.problems] == [
        "9: [outputs.2] speeed: kept output: no option 'speeed'; did you mean speed?",
        "12: [outputs.3] name: 'main' is the name of another output",
        "17: [outputs.4] active: kept output: option active: '7 years': 'years' is no unit "
        "here (column 3); units are ns, us, ms, s, m, h, d",
        "20: [outputs.5] url: there is no kind of output 'keept'; did you mean kept?",
        "24: [outputs.6] owners: kept output: option owners: 'perhaps' is not on or off",
    ]
    (output,) = loaded.settings.outputs
    assert output == OutputConfig("kept://there:1", "main", {"speed": "7", "owners": "on"})
    file.write_text('outputs = "kept://there:1"\n')
    assert "is no list; write [[outputs]]" in str(load(str(file), SECTIONS, {}).problems[0])
