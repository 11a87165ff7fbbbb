"""Configurations that are refused, and the words of each refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import app.outputs.formats  # noqa: F401  fills in the names of formats
from bpf.errors import UsageError
from probes.config.model import (
    MAX_SOURCE,
    DirectionConfig,
    ProbeConfig,
    dump,
    parse,
)
from tests.probes.config.configurations import SOURCE, ingress, refused, small


def metric(**keys: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["ingress"]["metrics"][0].update(keys)


def another(**keys: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["ingress"]["metrics"].append(keys)


def top(**keys: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data.update(keys)


def event(**keys: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data.update(event={"source": SOURCE, **keys})


NAME_HINT = "up to 64 letters, digits, _ . and -, the first a letter or _"
WRONG = [
    (metric(snapshott=True), "ingress.metrics[0].snapshott: no such key; did you mean snapshot?"),
    (top(nmae="x"), "nmae: no such key; did you mean name?"),
    (ingress(hook="xpd"), "ingress.hook: 'xpd' is not one of its values; did you mean xdp?"),
    (event(hook="raw_tp"), "event.tracepoint: hook raw_tp needs it"),
    (event(hook="cgroup"), "event.attach: hook cgroup needs it"),
    (
        event(hook="cgroup", attach="sock_creat"),
        "event.attach: 'sock_creat' is not one of its values; did you mean sock_create?",
    ),
    (event(hook="raw_tp", tracepoint="x", cgroup="y"), "event.cgroup: it is for hook cgroup"),
    (event(hook="tc", attach="x"), "event.attach: it is for hook cgroup"),
    (event(hook="tc"), "event.hook: must be raw_tp or cgroup"),
    (
        event(hook="raw_tp", tracepoint="x", interface="lo"),
        "event.interface: events have none; leave it out",
    ),
    (ingress(hook="raw_tp", tracepoint="x"), "ingress.hook: must be xdp, tc or monitor"),
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
    (top(ingress=None), "it has no direction; give ingress, egress, or event"),
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
    (
        top(maps={"counts": {"private": True}}),
        "ingress.metrics[0]: it shows the contents of a map, and maps.counts is private; leave it "
        "out",
    ),
    (
        top(maps={"x": {"private": True, "writable": True}}),
        "maps.x.private: operators read and write the map; leave it out",
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


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
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
