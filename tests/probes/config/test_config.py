"""Configurations: valid ones, refused ones, and the words of each refusal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpf.abi import ProgType
from bpf.compiler import Compiled, Compiler
from bpf.errors import UsageError
from probes.config.map_config import Metric
from probes.config.metric_checks import check_metrics
from probes.config.model import (
    MAX_FILE,
    MAX_SOURCE,
    DirectionConfig,
    Health,
    NetflowFeatures,
    ProbeConfig,
    dump,
    load,
    parse,
)

SOURCE = "int count(struct xdp_md *ctx) { return XDP_PASS; }\n"
WHOLE = """\
name = "web"
format = "xml"
interval = 0.5

[ingress]
interface = "eth0"
hook = "tc"
source = "count.c"
function = "count"

[[ingress.metrics]]
name = "packets"
map = "counts"
help = "packets seen"
snapshot = true
agg = "max"

[[ingress.metrics]]
name = "clients"
map = "clients"
init = true
types = { "key" = "ipv4" }

[egress]
source = '''
int out(struct __sk_buff *skb)
{
    return 0;
}
'''

[health]
seconds = 2
metrics = ["ingress.packets"]
"""


def small(**more: Any) -> dict[str, Any]:
    """A configuration that is right, with one metric."""
    ingress = {"source": SOURCE, "metrics": [{"name": "packets", "map": "counts"}]}
    return {"name": "web", "ingress": ingress, **more}


def refused(data: object, where: str = "web.toml") -> str:
    with pytest.raises(UsageError) as refusal:
        parse(data, where)
    return str(refusal.value)


def refused_file(path: Path) -> str:
    with pytest.raises(UsageError) as refusal:
        load(path)
    return str(refusal.value).replace(f"{path.parent}/", "")


def test_a_toml_file_and_the_same_in_json_are_one_configuration(tmp_path: Path) -> None:
    """S1.2, S1.3: everything that a configuration has, by file."""
    (tmp_path / "count.c").write_text(SOURCE)
    (tmp_path / "web.toml").write_text(WHOLE)
    config = load(tmp_path / "web.toml")
    (tmp_path / "web.json").write_text(json.dumps(dump(config)))
    assert dump(load(tmp_path / "web.json")) == dump(config)

    assert (config.name, config.format, config.interval) == ("web", "xml", 0.5)
    assert config.origin == str(tmp_path / "web.toml")
    assert config.ingress is not None
    assert config.egress is not None
    assert config.ingress.source == SOURCE
    assert config.ingress.file == str(tmp_path / "count.c")
    assert (config.ingress.interface, config.ingress.hook) == ("eth0", "tc")
    assert config.ingress.function == "count"
    assert config.egress.file == ""
    assert config.egress.source.startswith("int out(")
    packets, clients = config.ingress.metrics
    assert packets == Metric(
        name="packets", map="counts", help="packets seen", snapshot=True, agg="max"
    )
    assert clients == Metric(name="clients", map="clients", init=True, types={"key": "ipv4"})
    assert config.health == Health(seconds=2, metrics=("ingress.packets",))


def test_a_request_has_its_source_inline_whatever_it_looks_like(tmp_path: Path) -> None:
    """S1.1: what comes by REST reads no files."""
    config = parse(small(ingress={"source": "/etc/passwd.c"}), "request")
    assert config.ingress is not None
    assert config.ingress.source == "/etc/passwd.c"
    assert config.origin == "request"


def test_a_dump_leaves_defaults_out_and_makes_the_same_configuration() -> None:
    config = parse(small(), "request")
    assert dump(config) == small()
    assert parse(dump(config), "request") == config
    assert json.loads(json.dumps(dump(config))) == dump(config)


def test_another_source_keeps_all_else() -> None:
    config = parse(small(interval=0), "web.toml")
    edited = config.with_source("ingress", "int f;")
    assert edited.origin == "web.toml"
    assert edited.ingress is not None
    assert edited.ingress.source == "int f;"
    assert dump(edited.with_source("ingress", SOURCE)) == dump(config)


def metric(**keys: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["ingress"]["metrics"][0].update(keys)


def another(**keys: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["ingress"]["metrics"].append(keys)


def ingress(**keys: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["ingress"].update(keys)


def top(**keys: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data.update(keys)


NAME_HINT = "up to 64 letters, digits, _ . and -, the first a letter or _"
WRONG = [
    (metric(snapshott=True), "ingress.metrics[0].snapshott: no such key; did you mean snapshot?"),
    (top(nmae="x"), "nmae: no such key; did you mean name?"),
    (ingress(hook="xpd"), "ingress.hook: 'xpd' is not one of its values; did you mean xdp?"),
    (top(format="jason"), "format: 'jason' is not one of its values; did you mean json?"),
    (
        metric(agg="total"),
        "ingress.metrics[0].agg: 'total' is not one of its values; there are avg, max, min, sum",
    ),
    (
        metric(agg="summ", snapshot="perhaps", init=[]),
        "ingress.metrics[0].snapshot: must be a valid boolean, not 'perhaps' (and 2 more)",
    ),
    (another(name="x"), "ingress.metrics[1].map: it is missing"),
    (another(name="packets", map="x"), "ingress.metrics[1].name: there are two metrics 'packets'"),
    (
        another(name="x", map="counts", snapshot=True),
        "ingress.metrics[1].snapshot: 'packets', of the same map, has false; "
        "metrics of one map have it in common",
    ),
    (metric(name="a/b"), f"ingress.metrics[0].name: 'a/b' is not a name; {NAME_HINT}"),
    (top(name="../x"), f"name: '../x' is not a name; {NAME_HINT}"),
    (
        metric(export=False),
        "ingress.metrics[0].export: neither exported nor emptied; give init too",
    ),
    (
        ingress(source="\n"),
        "ingress: it has no program; give source, a file or C text, or netflow",
    ),
    (ingress(source="int f;\0"), "ingress.source: it is binary, no text"),
    (ingress(source="int f;\ud800"), "ingress.source: it is no UTF-8 text (line 1)"),
    (ingress(source="é" * (MAX_SOURCE // 2 + 1)), "ingress.source: it has more than 1 MiB"),
    (metric(help="\ud800"), "ingress.metrics[0].help: '\\ud800' is no text"),
    (top(ingress=None), "it has no direction; give ingress, egress, or both"),
    (top(ingress=[]), "ingress: must be a table of keys and values"),
    (ingress(metrics={}), "ingress.metrics: must be a list"),
    (
        top(egress={"source": SOURCE, "hook": "xdp"}),
        "egress.hook: XDP sees no egress; leave it out, or say tc",
    ),
    (top(interval=0.001), "interval: must be 0, or 0.01 to 300 seconds, not 0.001"),
    (top(interval=301), "interval: must be 0, or 0.01 to 300 seconds, not 301"),
    (top(interval=float("nan")), "interval: must be a finite number, not nan"),
    (
        top(health={"metrics": ["packet"]}),
        "health.metrics[0]: no exported metric 'packet'; did you mean packets?",
    ),
    (
        top(health={"seconds": 0}),
        "health.seconds: must be greater than or equal to 0.1, not 0",
    ),
    (ingress(netflow={}), "ingress.netflow: there is a source too; give one of the two"),
]


@pytest.mark.parametrize(("spoil", "words"), WRONG, ids=[words[:40] for _, words in WRONG])
def test_what_is_wrong_is_told_in_a_line_with_file_key_and_hint(
    spoil: Callable[[dict[str, Any]], object], words: str
) -> None:
    """S1.6: a configuration that is wrong goes no further than this."""
    data = small()
    spoil(data)
    assert refused(data) == f"web.toml: {words}"


NETFLOW_WRONG = [
    ({"features": 16}, "features: must be a list of names, or 1 to 15, not 16"),
    (
        {"features": ["IN_PKT"]},
        "features[0]: 'IN_PKT' is not one of its values; did you mean IN_PKTS?",
    ),
    ({"features": []}, "features: must not be empty"),
    ({"features": True}, "features: must be a list"),
    (
        {"features": 3, "method": "non-adaptive"},
        "features: the non-adaptive method always has all; "
        "leave features out, or take another method",
    ),
    (
        {"method": "nonadaptive"},
        "method: 'nonadaptive' is not one of its values; did you mean non-adaptive?",
    ),
]


@pytest.mark.parametrize(("netflow", "words"), NETFLOW_WRONG)
def test_netflow_that_is_wrong_is_told(netflow: dict[str, Any], words: str) -> None:
    data = {"name": "n", "ingress": {"netflow": netflow}}
    assert refused(data) == f"web.toml: ingress.netflow.{words}"


def test_netflow_becomes_a_source_and_a_metric_that_can_be_edited() -> None:
    """S1.30: a feature list is one program, a plain one from then on."""
    data = {"name": "n", "ingress": {"netflow": {"features": ["IPV4_DST_ADDR", "IN_PKTS"]}}}
    config = parse(data | {"health": {"metrics": ["flows"]}}, "n.toml")
    assert config.ingress is not None
    assert config.ingress.netflow is None
    assert "int netflow(CONTEXT *ctx)" in config.ingress.source
    assert config.ingress.metrics == (
        Metric(
            name="flows",
            map="flows",
            help="NetFlow v9: IN_PKTS by IPV4_DST_ADDR",
            snapshot=True,
            types={"key.IPV4_DST_ADDR": "ipv4"},
        ),
    )
    assert parse(dump(config), "n.toml") == config
    own = {"name": "per_destination", "map": "flows", "init": True}
    data = {"name": "n", "ingress": {"netflow": {"features": 7}, "metrics": [own]}}
    config = parse(data, "n.toml")
    assert config.ingress is not None
    assert config.ingress.metrics == (Metric.model_validate(own),)


def test_features_are_a_number_of_the_first_or_names() -> None:
    assert NetflowFeatures(features=2).features == ("INPUT_SNMP", "OUTPUT_SNMP")  # type: ignore[arg-type]
    assert len(NetflowFeatures().features) == 15
    schema = NetflowFeatures.model_json_schema()["properties"]["features"]
    assert {option["type"] for option in schema["anyOf"]} == {"integer", "array"}


FILES = [
    ("web.yaml", b"", "web.yaml: a configuration's name ends in .toml or .json"),
    ("web.toml", b"name = 'a'\nname = 'b'\n", "web.toml:2:11: Cannot overwrite a value"),
    ("web.toml", b"name = 'a'\nx = \n", "web.toml:2:5: Invalid value"),
    ("web.toml", b"name = 'a'\nx = [\n", "web.toml:3:1: Invalid value"),
    ("web.toml", b"\xff", "web.toml: it is no UTF-8 text (line 1)"),
    ("web.toml", b"\0\1\2", "web.toml: it is binary, no text"),
    ("web.toml", b"x = " + b"9" * 5000, "web.toml: a number has too many digits"),
    ("web.toml", b"x = " + b"[" * 9999, "web.toml: it is nested too deeply"),
    ("web.json", b"[" * 99999, "web.json: it is nested too deeply"),
    ("web.json", b'{"a": ' + b"9" * 5000 + b"}", "web.json: a number has too many digits"),
    ("web.json", b'{"name": "a",\n "x" 1}', "web.json:2:6: Expecting ':' delimiter"),
    ("web.json", b'{"a": {"b": 1, "b": 2}}', "web.json: key 'b' is given twice"),
    ("web.json", b'{"interval": NaN}', "web.json: NaN is no number in JSON"),
    ("web.json", b"[]", "web.json: must be a table of keys and values"),
    ("web.json", b" " * (MAX_FILE + 1), "web.json: it has more than 4 MiB"),
]


@pytest.mark.parametrize(("name", "data", "words"), FILES, ids=[words for _, _, words in FILES])
def test_a_file_that_cannot_be_read_is_told_with_the_place(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert refused_file(path) == words


def test_a_file_that_is_not_there_or_no_file(tmp_path: Path) -> None:
    (tmp_path / "web.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    missing = "wbe.toml: No such file or directory; did you mean web.toml?"
    assert refused_file(tmp_path / "wbe.toml") == missing
    assert refused_file(tmp_path / "web.toml") == "web.toml: Is a directory"
    assert refused_file(tmp_path / "pipe.json") == "pipe.json: it is no regular file"


SOURCES = [
    (None, "count.c: No such file or directory; did you mean counts.c?"),
    (b"x" * (MAX_SOURCE + 1), "count.c: it has more than 1 MiB"),
    (b"\x7fELF\0", "count.c: it is binary, no text"),
    (b"int f;\n\xff", "count.c: it is no UTF-8 text (line 2)"),
    (b"\n", "count.c: it is empty"),
]


@pytest.mark.parametrize(("data", "words"), SOURCES, ids=[words for _, words in SOURCES])
def test_a_source_file_that_cannot_be_read_is_told_with_file_and_key(
    tmp_path: Path, data: bytes | None, words: str
) -> None:
    """S1.6: binary junk, ten megabytes, nothing at all."""
    (tmp_path / "web.toml").write_text('name = "web"\n[ingress]\nsource = "count.c"\n')
    (tmp_path / "counts.c").touch()
    if data is not None:
        (tmp_path / "count.c").write_bytes(data)
    assert refused_file(tmp_path / "web.toml") == f"web.toml: ingress.source: {words}"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec=None)), inner),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    ["name", "interval", "ingress", "source", "metrics", "netflow", "features", "types", "health"]
)
_SHAPED = st.recursive(
    _JSON, lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner), max_leaves=20
)


@settings(max_examples=50, deadline=None)
@given(data=st.dictionaries(_KEYS, _SHAPED))
def test_anything_else_is_refused_in_one_line_that_can_be_printed(data: dict[str, Any]) -> None:
    """S1.6, with inputs from a fuzzer of the API."""
    try:
        config = parse(data, "request")
    except UsageError as error:
        words = str(error)
    else:
        words = "request: fine"
        assert parse(json.loads(json.dumps(dump(config))), "request") == config
    assert words.startswith("request: ")
    assert words.isprintable()
    words.encode()


def test_a_model_made_by_hand_is_checked_too() -> None:
    with pytest.raises(ValueError, match="no program"):
        ProbeConfig(name="x", ingress=DirectionConfig())


MAPS = """\
struct pair { u64 packets; u32 zone; };
struct named { char name[16]; u64 packets; };
struct flags { u64 packets; u32 syn:5; };
struct seen { u64 at:48; u32 hops[4]; };
union either { u64 packets; u32 bytes; };

BPF_PERCPU_HASH(sources, u32, struct pair);
BPF_PERCPU_ARRAY(names, struct named, 4);
BPF_PERCPU_ARRAY(either, union either, 4);
BPF_HASH(totals, u32, u64);
BPF_QUEUE(events, u64, 16);
BPF_PERCPU_HASH(flags, u32, struct flags);
BPF_HASH(seen, u32, struct seen);
BPF_HISTOGRAM(sizes);
BPF_PROG_ARRAY(next, 4);
BPF_RINGBUF_OUTPUT(ring, 1);

int f(struct xdp_md *ctx) { return XDP_PASS; }
"""


@pytest.fixture(scope="module")
def compiled(compiler: Compiler) -> Any:
    with compiler.compile(MAPS, ProgType.XDP) as result:
        yield result


def checked(compiled: Compiled, **keys: Any) -> None:
    metrics = [{"name": "fine", "map": "totals"}, {"name": "m", **keys}]
    data = {"name": "web", "ingress": {"source": SOURCE, "metrics": metrics}}
    check_metrics(parse(data, "web.toml"), "ingress", compiled.maps)


METRICS_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"map": "source"}, "map: the source declares no map 'source'; did you mean sources?"),
    (
        {"map": "xyz"},
        "map: the source declares no map 'xyz'; there are either, events, flags, names, seen, "
        "sizes, sources, totals",
    ),
    (
        {"map": "next"},
        "map: next is a prog array, whose contents mean nothing outside; "
        "export a hash, an array, a trie, a queue or a stack",
    ),
    (
        {"map": "ring"},
        "map: ring is a ringbuf, whose contents mean nothing outside; "
        "export a hash, an array, a trie, a queue or a stack",
    ),
    (
        {"map": "totals", "agg": "sum"},
        "agg: totals is a hash: it has one value an entry, not one for each CPU; "
        "leave agg out, or declare a per-CPU map (BPF_PERCPU_HASH, BPF_PERCPU_ARRAY)",
    ),
    (
        {"map": "names", "agg": "max"},
        "agg: names has no max: value.name is a text; leave agg out: one value for each CPU",
    ),
    (
        {"map": "either", "agg": "sum"},
        "agg: either has no sum: value.bytes overlaps the field before (a union); "
        "leave agg out: one value for each CPU",
    ),
    (
        {"map": "flags", "agg": "sum"},
        "agg: flags has no sum: value.syn is a bit field; leave agg out: one value for each CPU",
    ),
    (
        {"map": "seen", "expire": {"field": "value.at", "seconds": 5}},
        "expire.field: value.at of seen is no u64; a time is one, nanoseconds of CLOCK_MONOTONIC",
    ),
    (
        {"map": "sources", "types": {"value.zona": "ipv4"}},
        "types.value.zona: sources has no such field; did you mean value.zone?",
    ),
    (
        {"map": "sizes", "types": {"slot": "linea"}},
        "types.slot: no type 'linea'; did you mean linear?",
    ),
    (
        {"map": "totals", "types": {"slot": "linear"}},
        "types.slot: totals has no such field; there are key, value",
    ),
    (
        {"map": "seen", "types": {"value.hops[]": "mac"}},
        "types.value.hops[]: can't be mac: that takes 6 bytes; it has 4 bytes",
    ),
]


@pytest.mark.parametrize(("keys", "words"), METRICS_WRONG)
def test_a_metric_that_its_map_cannot_give_is_told(
    compiled: Compiled, keys: dict[str, Any], words: str
) -> None:
    """S1.9, S1.11: held against what was compiled, before anything is changed."""
    with pytest.raises(UsageError) as refusal:
        checked(compiled, **keys)
    assert str(refusal.value) == f"web.toml: ingress.metrics[1].{words}"


@pytest.mark.parametrize(
    "keys",
    [
        {"map": "sources", "agg": "avg", "types": {"key": "ipv4", "value.zone": "hex"}},
        {"map": "names", "types": {"value.name": "text"}},
        {"map": "events"},
        {"map": "sizes", "types": {"slot": "linear"}},
        {"map": "seen", "types": {"value.hops[]": "ipv4"}},
        {"map": "either", "snapshot": True},
    ],
)
def test_a_metric_that_its_map_can_give_is_taken(compiled: Compiled, keys: dict[str, Any]) -> None:
    checked(compiled, **keys)
