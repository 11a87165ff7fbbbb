"""Maps shared by the directions of a probe, and by probes."""

from __future__ import annotations

from typing import Any

import pytest

from bpf.attach.attachment import Hook
from bpf.compiler import CompileError
from bpf.errors import UsageError
from probes.config.map_config import MapOptions
from probes.config.model import ProbeConfig, parse
from probes.reports import Fate
from tests.probes.program.tools import Loose, held_ids, metric, replace, table

SEEN = "BPF_HASH(seen, u32, u64, 8);"
COUNT = "u32 k = 1; u64 zero = 0, *n = seen.lookup_or_try_init(&k, &zero); if (n) (*n)++;"
XDP = f"{SEEN}\nint f(struct xdp_md *ctx) {{ {COUNT} return XDP_PASS; }}\n"
TC = f"{SEEN}\nint g(struct __sk_buff *skb) {{ {COUNT} return -1; }}\n"
METRIC = metric("seen")


def probe(
    share: str, *, ingress: str = "", egress: str = "", name: str = "probe", **options: Any
) -> ProbeConfig:
    sides: dict[str, Any] = {}
    if ingress:
        sides["ingress"] = {"interface": "lo", "source": ingress, "metrics": [METRIC]}
    if egress:
        sides["egress"] = {"interface": "lo", "source": egress}
    maps = {"seen": {"share": share, **options}} if share else {}
    return parse({"name": name, "interval": 0, "maps": maps, **sides}, "test")


def seen(items: Any) -> int:
    return int(table(items, "seen").get(1, 0))


def test_both_directions_count_in_one_map(loose: Loose) -> None:
    running = loose.add(probe("probe", ingress=XDP, egress=TC))
    loose.send(3)
    loose.send(4, hook=Hook.TC_EGRESS)
    assert seen(running.export()) == 7
    apart = loose.add(probe("", ingress=XDP, egress=TC, name="apart"))
    loose.send(1)
    loose.send(4, hook=Hook.TC_EGRESS)
    assert (seen(running.export()), seen(apart.export())) == (12, 1)


def test_probes_share_a_map_by_name_for_as_long_as_one_of_them_runs(loose: Loose) -> None:
    before = held_ids()
    one = loose.add(probe("both", ingress=XDP, name="one"))
    loose.send(2)
    two = loose.add(probe("both", egress=TC, name="two"))
    loose.send(5, hook=Hook.TC_EGRESS)
    assert seen(one.export()) == 7
    loose.remove(one)
    three = loose.add(probe("both", ingress=XDP, name="three"))
    assert seen(three.export()) == 7
    loose.remove(two)
    loose.remove(three)
    again = loose.add(probe("both", ingress=XDP, name="again"))
    assert seen(again.export()) == 0, "nobody had it any more"
    loose.remove(again)
    assert held_ids() == before


def test_a_map_of_one_probe_is_not_anothers(loose: Loose) -> None:
    one = loose.add(probe("probe", ingress=XDP, name="one"))
    two = loose.add(probe("probe", ingress=XDP, name="two"))
    loose.send(2)
    assert (seen(one.export()), seen(two.export())) == (2, 2)


def test_a_replacement_goes_on_with_the_shared_map(loose: Loose) -> None:
    running = loose.add(probe("both", ingress=XDP, egress=TC))
    loose.send(2)
    with running.compile(probe("both", ingress=XDP + "// new\n", egress=TC)) as compiled:
        assert {fate.fate for fate in running.compare(compiled).maps} == {Fate.KEPT}
        running.replace(compiled)
    loose.send(4, hook=Hook.TC_EGRESS)
    assert seen(running.export()) == 6


def test_another_layout_is_a_new_map_unless_another_probe_has_the_old(loose: Loose) -> None:
    before = held_ids()
    larger = {"ingress": XDP.replace("u64, 8", "u64, 9"), "egress": TC.replace("u64, 8", "u64, 9")}
    running = loose.add(probe("both", ingress=XDP, egress=TC))
    loose.send(2)
    replace(running, probe("both", **larger))
    loose.send(3)
    loose.send(4, hook=Hook.TC_EGRESS)
    assert seen(running.export()) == 7
    running.roll_back()
    other = loose.add(probe("both", ingress=XDP, name="other"))
    loose.send(1)
    assert seen(running.export()) == 4, "what it held, and a packet for each probe"
    with pytest.raises(UsageError) as caught:
        replace(running, probe("both", **larger))
    assert str(caught.value) == (
        "test: maps.seen.share: map seen is shared as 'both' with probe other, and is another "
        "here: size 9, was 8; declare it alike, or share it under another name"
    )
    loose.remove(other)
    loose.remove(running)
    assert held_ids() == before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("u64, 8", "u64, 9"), "size 9, was 8"),
        (("BPF_HASH(seen, u32", "BPF_HASH(seen, s32"), "key int32, was uint32"),
        (("BPF_HASH(", 'BPF_TABLE("lru_hash", '), "kind lru_hash, was hash"),
    ],
)
def test_directions_must_declare_a_shared_map_alike(
    loose: Loose, change: tuple[str, str], why: str
) -> None:
    other = TC.replace(*change).replace("u32 k", "s32 k" if "s32" in change[1] else "u32 k")
    if "lru" in change[1]:
        other = other.replace('"lru_hash", seen, u32, u64, 8', '"lru_hash", u32, u64, seen, 8')
    with pytest.raises(UsageError) as caught:
        loose.add(probe("probe", ingress=XDP, egress=other))
    assert f"test: maps.seen.share: egress declares another map: {why}" in str(caught.value)


def test_a_snapshot_cannot_be_shared(loose: Loose) -> None:
    data = {
        "name": "p",
        "maps": {"seen": {"share": "probe"}},
        "ingress": {
            "interface": "lo",
            "source": XDP,
            "metrics": [metric("seen", snapshot=True)],
        },
    }
    with pytest.raises(UsageError, match=r"ingress.metrics\[0\]: each window of a snapshot has a"):
        parse(data, "test")


def test_a_change_of_sharing_starts_with_another_map(loose: Loose) -> None:
    running = loose.add(probe("", ingress=XDP))
    loose.send(2)
    with running.compile(probe("both", ingress=XDP)) as compiled:
        (fate,) = running.compare(compiled).maps
        assert (fate.fate, fate.reason) == (Fate.EMPTY, "shared as 'both'")
        running.replace(compiled)
    assert seen(running.export()) == 0
    other = loose.add(probe("both", ingress=XDP, name="other"))
    loose.send(1)
    with running.compile(probe("", ingress=XDP)) as compiled:
        (fate,) = running.compare(compiled).maps
        assert (fate.fate, fate.reason) == (Fate.EMPTY, "no longer shared")
        running.replace(compiled)
    loose.send(1)
    assert (seen(running.export()), seen(other.export())) == (1, 3)


def test_both_directions_and_an_operator_write_one_map(loose: Loose) -> None:
    running = loose.add(probe("probe", ingress=XDP, egress=TC, writable=True))
    running.set_entry("seen", 1, 100)
    loose.send(1)
    loose.send(1, hook=Hook.TC_EGRESS)
    assert running.entries("seen") == [{"key": 1, "value": 102}]
    apart = probe("", ingress=XDP, egress=TC, name="x")
    apart = apart.model_copy(update={"maps": {"seen": MapOptions(writable=True)}})
    with pytest.raises(UsageError, match=r"maps.seen: each direction declares its own map"):
        loose.add(apart)


PUBLIC = XDP.replace(SEEN, 'BPF_TABLE_PUBLIC("hash", u32, u64, seen, 8);')
EXTERN = TC.replace(
    SEEN, '// BPF_TABLE("extern", u32, u64, no, 0);\nBPF_TABLE("extern", u32,\nu64, seen, 0);'
)


@pytest.mark.parametrize("turned", [False, True])
def test_bccs_extern_shares_the_map_of_the_other_direction(loose: Loose, turned: bool) -> None:
    ingress, egress = PUBLIC, EXTERN
    if turned:
        ingress = XDP.replace(SEEN, 'BPF_TABLE("extern", u32, u64, seen, 0);')
        egress = TC.replace(SEEN, 'BPF_TABLE_PUBLIC("hash", u32, u64, seen, 8);')
    running = loose.add(probe("", ingress=ingress, egress=egress))
    assert [info.side for info in running.programs()] == ["ingress", "egress"]
    loose.send(2)
    loose.send(3, hook=Hook.TC_EGRESS)
    assert seen(running.export()) == 5


def test_bccs_extern_finds_a_map_that_another_probe_shares(loose: Loose) -> None:
    one = loose.add(probe("both", ingress=PUBLIC, name="one"))
    loose.add(probe("both", egress=EXTERN, name="two"))
    loose.send(2)
    loose.send(3, hook=Hook.TC_EGRESS)
    assert seen(one.export()) == 5


def test_an_extern_map_that_nobody_declares_is_told_with_its_line(loose: Loose) -> None:
    with pytest.raises(CompileError) as caught:
        loose.add(probe("", egress=EXTERN))
    first = caught.value.diagnostics[0]
    assert (first.file, first.line) == ("probe.egress.c", 2)
    assert first.text.startswith("no program declares map seen: declare it in the other direction")


def test_places_behind_an_extern_map_stay(loose: Loose) -> None:
    with pytest.raises(CompileError) as caught:
        loose.add(probe("", ingress=PUBLIC, egress=EXTERN + "int g2 = oops;\n"))
    assert [d.line for d in caught.value.diagnostics if d.severity == "error"] == [5]
