"""ClickHouse's engine behind its HTTP interface, fed from Kafka; run by the demo's own Python.

`store.py TOPIC PORT SCHEMA`: rows of the topic go to probedeck.flows_in, as the Kafka engine of
deploy/fleet/clickhouse/kafka.sql does it in a server. `GET /kafka` returns what the topic had.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from chdb.session import Session
from confluent_kafka import Consumer

_MOST = 1000
_session = Session()
_lock = threading.Lock()
_seen = {"records": 0, "packets": 0, "bytes": 0}


def _query(text: str, form: str) -> bytes:
    with _lock:
        return bytes(_session.query(text, form).bytes())


def _load(topic: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": "127.0.0.1:9092",
            "group.id": "clickhouse",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    while True:
        rows = [each.value() for each in consumer.consume(_MOST, 0.2) if not each.error()]
        if not rows:
            continue
        for row in map(json.loads, rows):
            _seen["records"] += 1
            _seen["packets"] += int(row["packets"])
            _seen["bytes"] += int(row["bytes"])
        text = b"\n".join(rows).decode()
        _query(f"INSERT INTO probedeck.flows_in FORMAT JSONEachRow\n{text}", "Null")


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200, json.dumps(_seen).encode())

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        given = parse_qs(urlsplit(self.path).query)
        try:
            self._answer(200, _query(text, given.get("default_format", ["TabSeparated"])[0]))
        except Exception as error:
            self._answer(400, str(error).encode())

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the log to errors."""


def main() -> None:
    topic, port, schema = sys.argv[1:]
    for statement in Path(schema).read_text(encoding="utf-8").split(";\n"):
        if statement.strip():
            _query(statement, "Null")
    threading.Thread(target=_load, args=(topic,), daemon=True).start()
    ThreadingHTTPServer(("127.0.0.1", int(port)), _Handler).serve_forever()


main()
