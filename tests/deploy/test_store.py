"""ClickHouse's engine takes each statement of deploy/fleet, and its sums equal the rows'."""

from __future__ import annotations

import json
import time
from typing import Any

from app.store import queries
from tests.deploy.tools import DEPLOY, python

SESSION = """
import json, sys
from unittest.mock import MagicMock
# chdb imports both, for kinds of results that nobody asks for here.
sys.modules["pyarrow"] = sys.modules["pandas"] = MagicMock()
from chdb.session import Session
session = Session()
for statement in json.load(sys.stdin):
    try:
        print(json.dumps(str(session.query(statement, "JSONEachRow"))))
    except RuntimeError as error:
        print(json.dumps(json.dumps({"error": str(error)})))
"""
QUEUE = "probedeck.flows_queue"
START_NS = time.time_ns() // 10**9 * 10**9 + 123_000_000
"""Older rows would expire."""
A, B, ALIEN = "10.0.0.1", "10.0.0.2", "192.0.2.9"


def statements(name: str) -> list[str]:
    text = (DEPLOY / f"fleet/clickhouse/{name}.sql").read_text()
    return [each for each in text.split(";\n") if each.strip()]


def ask(*given: str) -> list[list[dict[str, Any]]]:
    """Run statements in a new engine; return the rows of each, or its error as a row."""
    lines = python("-c", SESSION, text=json.dumps(given)).splitlines()
    return [[json.loads(row) for row in json.loads(line).splitlines()] for line in lines]


def record(host: str, direction: int, source: str, target: str, packets: int, **more: Any) -> str:
    """A row as goflow2 writes it."""
    return json.dumps({
        "sampler_address": host, "sampling_rate": 0, "direction": direction, "etype": 0x0800,
        "time_flow_start_ns": START_NS, "time_flow_end_ns": START_NS + 877_000_000,
        "proto": 6, "src_addr": source, "dst_addr": target, "src_port": 40001, "dst_port": 443,
        "in_if": 3, "out_if": 4, "packets": packets, "bytes": 100 * packets, "unit": "", "pod": "",
        "src_process": "", "dst_process": "", **more,
    })  # fmt: skip


ROWS = (
    record(A, 1, A, B, 7, src_process=b"curl".hex()),
    record(B, 0, A, B, 7, dst_process=b"nginx".hex(), unit=b"nginx.service".hex(), rtt_us=250),
    record(B, 0, ALIEN, B, 5, etype=0x86DD),
    record(A, 1, A, B, 0),
)


def test_flows_arrive_in_the_store_and_ready_queries_answer() -> None:
    own = "SELECT * FROM probedeck.flows ORDER BY packets, direction"
    sums = "SELECT sum(packets) AS p, sum(bytes) AS b FROM probedeck."
    ready = {name: text.strip().rstrip(";") for name, text in queries().items()}
    # The engine has no Kafka: it reads the table's statement, and another table has its messages.
    table, *views = statements("kafka")
    # `*` has no virtual columns of Kafka, nor these.
    error = "_error String MATERIALIZED if(packets = 0, 'no number', '')"
    raw = "_raw_message String MATERIALIZED '{'"
    before = (
        *statements("schema"),
        f"CREATE TABLE {QUEUE} AS probedeck.flows_in ENGINE = Null",
        f"ALTER TABLE {QUEUE} ADD COLUMN {error}, ADD COLUMN {raw}",
        *views,
        f"INSERT INTO {QUEUE} FORMAT JSONEachRow\n{chr(10).join(ROWS)}",
    )
    unreadable = "SELECT error, message FROM probedeck.unread"
    answers = ask(
        *before, table.replace(QUEUE, f"{QUEUE}_of_kafka", 1), unreadable, own,
        f"{sums}minutes", f"{sums}sent", *ready.values(),
    )  # fmt: skip
    assert not any(answers[: len(before)]), next(filter(None, answers))
    (refused,), unread, rows, minutes, sent, *others = answers[len(before) :]
    assert "Unknown table engine Kafka" in refused["error"]
    assert unread == [{"error": "no number", "message": "{"}]
    assert [(row["host"], row["direction"], row["packets"]) for row in rows] == [
        (B, "in", 5), (B, "in", 7), (A, "out", 7),
    ]  # fmt: skip
    assert [(row["ip_version"], row["interface"], row["process"]) for row in rows] == [
        (6, 3, ""), (4, 3, "nginx"), (4, 4, "curl"),
    ]  # fmt: skip
    assert rows[0]["start"].endswith(".123")
    assert minutes == [{"p": 19, "b": 1900}]
    assert sent == [{"p": 12, "b": 1200}], "the packets between both hosts count once"
    found = dict(zip(ready, others, strict=True))
    assert [(each["source"], each["packets"]) for each in found["talkers"]] == [(A, 7), (ALIEN, 5)]
    assert [each["process"] for each in found["owners"]] == ["curl", "nginx"]
    assert found["distinct"] == [{"flows": 2}]
    assert [each["packets"] for each in found["totals"]] == [7, 12]
