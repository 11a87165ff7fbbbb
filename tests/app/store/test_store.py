"""Questions to a store, on a server that answers as ClickHouse does."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.store import ask, queries
from bpf.errors import ProbedeckError, UsageError

ERROR = "Code: 62. DB::Exception: Syntax error: failed at position 1\nstack"


class Server(HTTPServer):
    """Remembers requests; refuses those that contain `wrong`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[dict[str, list[str]], str, str]] = []
        self.url = f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        given = parse_qs(urlsplit(self.path).query)
        self.server.asked.append((given, body, self.headers.get("Authorization", "")))
        code, answer = (404, ERROR) if "wrong" in body else (200, "7\n")
        self.send_response(code)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_query_is_asked_without_the_right_to_change() -> None:
    with serving() as server:
        done = CliRunner().invoke(cli, ["sql", "--store", f"http://{server.url}", "select 7;"])
        assert done.stdout_bytes == b"7\n"
        ask(f"http://op:secret@{server.url}", "talkers", "csv")
        with pytest.raises(UsageError) as caught:
            ask(f"http://op:secret@{server.url}", "select wrong", "csv")
    (given, text, login), (ready, talkers, signed) = server.asked[:2]
    assert (given["readonly"], given["default_format"]) == (["1"], ["PrettySpaceMonoBlock"])
    assert (text, login) == ("select 7", "")
    assert ready["default_format"] == ["CSVWithNames"]
    assert talkers == queries()["talkers"].strip().rstrip(";")
    assert signed == "Basic " + base64.b64encode(b"op:secret").decode()
    first = ERROR.partition("\n")[0]
    assert str(caught.value) == f"http://{server.url} refuses the query: {first}"


def test_a_store_that_is_not_there_is_one_line() -> None:
    with serving() as server:
        url = f"http://{server.url}"
    with pytest.raises(ProbedeckError, match=f"^no answer of {url}: "):
        ask(url, "talkers", "text")
    for wrong in ("collector:8123", "ftp://collector:8123", "http://collector", "http://c:port"):
        with pytest.raises(UsageError, match="is no store"):
            ask(wrong, "talkers", "text")
    with pytest.raises(UsageError, match=r"no query 'talker'.*did you mean talkers\?"):
        ask(url, "talker", "text")
