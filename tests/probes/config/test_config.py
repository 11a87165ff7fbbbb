"""Configurations: valid ones, and files that cannot be read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from probes.config.map_config import Metric
from probes.config.model import (
    MAX_FILE,
    MAX_SOURCE,
    Health,
    dump,
    load,
    parse,
)
from probes.config.sources import NetflowFeatures
from tests.probes.config.configurations import SOURCE, refused_file, small

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
    ("web.json", b"[]", "web.json:1:1: must be a table of keys and values"),
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
