"""Networks of routers from databases as their publishers make them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from app.files import Invoker
from app.outputs.networks import Networks, RouterFacts, describing
from app.outputs.path_views import described
from app.outputs.sink import Sink
from app.outputs.views import VIEWS
from bpf.errors import UsageError
from probes.path.records import PathRowKind, ProbeOutcome
from tests.support import mmdb, paths
from tests.support.tables import rows_in

ROUTER = "198.51.100.7"


@pytest.mark.parametrize(
    ("record", "facts"),
    [
        (  # GeoLite2-ASN and DB-IP's ASN Lite
            {"autonomous_system_number": 64500, "autonomous_system_organization": "Example"},
            RouterFacts("", 64500, "Example"),
        ),
        (  # GeoLite2-Country and DB-IP's Country Lite
            {"country": {"iso_code": "DE", "geoname_id": 1}, "registered_country": {}},
            RouterFacts(country="DE"),
        ),
        ({"registered_country": {"iso_code": "FR"}}, RouterFacts(country="FR")),
        (  # IPinfo Lite
            {
                "asn": "AS64500", "as_name": "Example", "as_domain": "example.net",
                "country": "Germany", "country_code": "DE",
            },
            RouterFacts("", 64500, "Example", "DE"),
        ),
        (  # IPinfo's earlier files
            {"asn": "AS64500", "name": "Example", "country": "de"},
            RouterFacts("", 64500, "Example", "DE"),
        ),
        ({"name": "no network's"}, RouterFacts()),
        ({"asn": "AS", "as_name": "bad\x1b[31m"}, RouterFacts(as_name="bad?[31m")),
        ({"asn": [], "country": {"iso_code": 5}, "as_name": {}}, RouterFacts()),
    ],
)  # fmt: skip
def test_records_of_every_publisher(
    tmp_path: Path, record: dict[str, Any], facts: RouterFacts
) -> None:
    file = mmdb.write(tmp_path / "one.mmdb", {"198.51.100.0/24": record, "2001:db8::/32": record})
    networks = Networks([file])
    for address in (ROUTER, "2001:db8::7"):
        assert networks.describe(address) == facts
        assert networks.describe(address) is networks.describe(address)
    for address in ("192.0.2.1", "2001:db9::1"):
        assert networks.describe(address) == RouterFacts()


def test_several_databases_complete_one_another(tmp_path: Path) -> None:
    """The first one that knows a value says it; one of IPv4 knows nothing of IPv6."""
    first = {"198.51.100.0/24": {"asn": "AS1"}}
    second: dict[str, dict[str, Any]] = {
        "198.51.100.0/24": {"asn": "AS2", "country_code": "DE"}, "2001:db8::/32": {"asn": 3},
    }  # fmt: skip
    networks = Networks([
        mmdb.write(tmp_path / "4.mmdb", first, version=4), mmdb.write(tmp_path / "6.mmdb", second),
    ])  # fmt: skip
    assert networks.describe(ROUTER) == RouterFacts("", 1, "", "DE")
    assert networks.describe("2001:db8::1") == RouterFacts("", 3)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    text, cut = tmp_path / "text.mmdb", tmp_path / "cut.mmdb"
    text.write_text("no database" * 100)
    whole = Path(mmdb.write(tmp_path / "whole.mmdb", {"192.0.2.0/24": {"asn": 1}})).read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    strange = tmp_path / "strange.mmdb"
    strange.write_bytes(whole[: whole.index(b"MaxMind.com") + 11] + mmdb.encode({"ip_version": []}))
    empty = tmp_path / "empty.mmdb"
    empty.touch()
    for path, words in (
        (text, "is no MaxMind database (.mmdb)"),
        (cut, "is no MaxMind database (.mmdb)"),
        (strange, "is no MaxMind database (.mmdb)"),
        (empty, "is no MaxMind database (.mmdb)"),
        (tmp_path / "none.mmdb", "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
    ):
        with pytest.raises(UsageError) as caught:
            Networks([str(path)])
        assert str(caught.value) == f"{path} {words}"


def test_a_record_that_is_broken_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "broken.mmdb"
    mmdb.write(file, {"198.51.100.0/24": {"asn": 64500}})
    data = file.read_bytes()
    file.write_bytes(data.replace(mmdb.encode({"asn": 64500}), b"\xff" * 10))
    assert Networks([str(file)]).describe(ROUTER) == RouterFacts()


def test_the_file_is_read_with_the_rights_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret.mmdb"
    mmdb.write(file, {"192.0.2.0/24": {"asn": 1}})
    file.chmod(0o600)
    user = Invoker(65534, 65534, tmp_path, by_sudo=True)
    monkeypatch.setattr("app.files.invoker", lambda: user)
    with pytest.raises(UsageError, match="cannot be read: Permission denied"):
        Networks([str(file)])


def test_tables_have_columns_about_responders(tmp_path: Path) -> None:
    """Empty unless somebody asks for them, and for probes without an answer."""
    names = ("name", "asn", "as_name", "country")
    facts = RouterFacts("r7.example.net", 64500, "Example, Inc.", "DE")
    names_of = {ROUTER: facts.name}
    describe = describing(lambda _: dataclasses.replace(facts, name=""), names_of.__getitem__)
    items = (
        paths.probes(ProbeOutcome.ANSWERED, ProbeOutcome.UNANSWERED),
        paths.told(PathRowKind.SUMMARY),
    )
    whole = ["r7.example.net", "64500", "Example, Inc.", "DE"]
    for known, expected in ((True, whole), (False, [""] * 4)):
        views = [VIEWS[name] for name in ("hops", "paths", "events")]
        out = tmp_path / str(known)
        with Sink(str(out), "csv", [described(v, describe) if known else v for v in views]) as sink:
            for item in items:
                sink.write(item)
        answered, lost = rows_in(out / "hops.csv")
        (summary,) = rows_in(out / "paths.csv")
        assert [answered[f"responder_{name}"] for name in names] == expected
        assert [summary[f"responder_{name}"] for name in names] == expected
        assert [lost[f"responder_{name}"] for name in names] == [""] * 4
