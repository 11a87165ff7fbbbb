"""Entries that are swept by their age: told once more, then gone, and nothing else with them."""

from __future__ import annotations

from typing import Any

import pytest

from bpf.errors import UsageError
from bpf.maps.map import Map
from probes.config.model import ProbeConfig, dump, parse
from tests.probes.program.tools import Loose, direction, metric, snapshots, table

SECONDS = 300
YOUNG, OLD = 100, 600
"""Ages: a frame's length is the age of its entry in seconds."""
SOURCE = """\
struct entry { u64 since; u64 packets; u32 small; };
struct key { u64 since; u64 length; };

BPF_HASH(entries, u32, struct entry, 8192);
BPF_HASH(keys, struct key, u64, 16);
BPF_TABLE("lru_hash", u32, u64, times, 16);
BPF_PERCPU_HASH(apart, u32, u64, 16);
BPF_ARRAY(numbered, u64, 1);

int age(struct xdp_md *ctx)
{
    u32 length = ctx->data_end - ctx->data, zero = 0;
    u64 since = bpf_ktime_get_ns() - length * 1000000000ULL, one = 1;
    struct entry none = {.since = since};
    struct entry *entry = entries.lookup_or_try_init(&length, &none);
    if (entry)
        entry->packets += 1;
    struct key key = {.since = since, .length = length};
    keys.update(&key, &one);
    times.update(&length, &since);
    apart.update(&length, &since);
    numbered.update(&zero, &since);
    return XDP_PASS;
}
"""


def configured(*metrics: dict[str, Any], **define: int) -> ProbeConfig:
    ingress = direction(SOURCE, *metrics, define=define)
    return parse({"name": "probe", "interval": 0, "ingress": ingress}, "test")


def expiring(name: str, field: str, seconds: object = SECONDS, **more: Any) -> dict[str, Any]:
    return metric(name, expire={"field": field, "seconds": seconds}, **more)


@pytest.mark.parametrize(
    ("name", "field", "length"),
    [
        ("entries", "value.since", lambda key: key),
        ("keys", "key.since", lambda key: key[1]),
        ("times", "value", lambda key: key),
    ],
)
@pytest.mark.parametrize("seconds", [SECONDS, "TIMEOUT"])
def test_what_is_older_is_told_once_more(
    loose: Loose, name: str, field: str, length: Any, seconds: object
) -> None:
    probe = loose.add(configured(expiring(name, field, seconds), TIMEOUT=SECONDS))
    told = []
    for _ in range(3):
        loose.send(frame=bytes(YOUNG))
        told.append(probe.export())
        loose.send(frame=bytes(OLD))
        told.append(probe.export())
    lengths = [{length(key) for key in table(items, name)} for items in told]
    assert lengths == [{YOUNG}, {YOUNG, OLD}] * 3


def test_what_stays_goes_on_as_it_was(loose: Loose) -> None:
    probe = loose.add(configured(expiring("entries", "value.since")))
    for sent in range(1, 4):
        loose.send(frame=bytes(YOUNG))
        loose.send(2, frame=bytes(OLD))
        entries = table(probe.export(), "entries")
        assert {key: value[1] for key, value in entries.items()} == {YOUNG: sent, OLD: 2}


def test_without_being_exported(loose: Loose) -> None:
    """Maps that only the program needs are swept too."""
    swept = expiring("entries", "value.since", export=False)
    probe = loose.add(configured(swept, metric("numbered")))
    for _ in range(2):
        loose.send(frame=bytes(YOUNG))
        loose.send(frame=bytes(OLD))
        assert [snapshot.metric for snapshot in snapshots(probe.export())] == ["numbered"]
    (side,) = probe._current.sides
    (found,) = (each for each in side.metric_maps if each.name == "entries")
    assert side.map_of(found, side.clones[0]).read().keys.tolist() == [YOUNG]


def test_an_entry_that_the_program_deletes_meanwhile_is_no_error(
    loose: Loose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between being read and being swept; all others are swept."""
    probe = loose.add(configured(expiring("entries", "value.since")))
    lengths = [*range(OLD, OLD + 100), YOUNG]
    for length in lengths:
        loose.send(frame=bytes(length))
    read = Map.read

    def interrupted(self: Map, *, clear: bool = False) -> Any:
        entries = read(self, clear=clear)
        for length in (OLD, OLD + 50, OLD + 99):
            self.delete(length)
        return entries

    with monkeypatch.context() as patched:
        patched.setattr(Map, "read", interrupted)
        assert table(probe.export(), "entries").keys() == set(lengths)
    assert table(probe.export(), "entries").keys() == {YOUNG}


@pytest.mark.parametrize(
    ("name", "field", "said"),
    [
        ("entries", "value.sinc", "expire.field: entries has no field 'value.sinc'; did you mean "
         "value.since?"),
        ("entries", "value.small", "expire.field: value.small of entries is no u64; a time is one"),
        ("entries", "value", "expire.field: value of entries is no u64; a time is one"),
        ("numbered", "value", "expire: numbered is a array: only entries of a hash can be swept"),
        ("apart", "value", "expire: apart is a percpu hash: only entries of a hash can be swept"),
    ],
)  # fmt: skip
def test_a_map_that_cannot_be_swept_is_named(
    loose: Loose, name: str, field: str, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        loose.add(configured(expiring(name, field)))
    assert str(caught.value).startswith(f"test: ingress.metrics[0].{said}")
    assert not loose.hooks.in_use()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"init": True}, "expire: the map is emptied whenever it is read; leave it out"),
        ({"snapshot": True}, "expire: the map is emptied whenever it is read; leave it out"),
        ({"expire": {"field": "value", "seconds": 0}}, "expire.seconds: must be more than 0"),
        ({"expire": {"field": "value", "seconds": "5s"}}, "expire.seconds: '5s' is neither a num"),
        ({"expire": {"field": "value", "seconds": "TIMEOT"}},
         "expire.seconds: define has no TIMEOT; did you mean TIMEOUT?"),
        ({"expire": {"field": "value"}}, "expire.seconds: it is missing"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_by_its_key(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        configured(expiring("times", "value") | changed, TIMEOUT=5)
    assert str(caught.value).startswith(f"test: ingress.metrics[0].{said}")


def test_a_macro_that_is_no_time_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        configured(expiring("times", "value", "TIMEOUT"), TIMEOUT=0)
    assert str(caught.value) == "test: ingress.define.TIMEOUT: must be more than 0 seconds"


def test_metrics_of_one_map_have_it_in_common() -> None:
    with pytest.raises(UsageError) as caught:
        configured(expiring("times", "value"), metric("again", "times"))
    text = "test: ingress.metrics[1].expire: 'times', of the same map, has field='value' seconds"
    assert str(caught.value).startswith(text)


def test_a_configuration_keeps_it() -> None:
    given = configured(expiring("times", "value", "TIMEOUT"), TIMEOUT=5)
    again = parse(dump(given), "again")
    assert again.ingress is not None
    assert again.ingress.expiry(again.ingress.metrics[0]) == ("value", 5)
