"""Errors take one line and have the exit code of their kind; help is true."""

from __future__ import annotations

import errno
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

import app
from app.cli import main
from app.cli.subcommands.run import TOUR_PROBE
from tests.support.nobody import become_nobody
from tests.support.runs import COMMAND, deck_ends, deck_here

HEADLESS = ("run", "-i", "lo", "--headless")
EXTENT = " is not between 0.01 and 300 seconds"


def complaint(*arguments: str, **options: object) -> tuple[object, str]:
    """Exit code, and the one line on standard error without `probedeck: `. Only two marker lines,
    which point into the input, may follow. With options, a new process runs."""
    code, out, err = deck_ends(*arguments, **options) if options else deck_here(*arguments)  # type: ignore[arg-type]
    assert out == ""
    assert err.startswith("probedeck: ")
    line, *marked = err.removeprefix("probedeck: ").splitlines()
    if found := re.search(r"\(column (\d+)\)", line):
        assert marked[0] in arguments
        assert marked[1:] == [" " * (int(found[1]) - 1) + "^"]
    else:
        assert not marked
    return code, line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("runn", "No such command 'runn'. Did you mean 'run'?"),
        ("--verson", "No such option '--verson'. Did you mean '--version'?"),
        ("run -i lo,lp", "no interface 'lp'; there are "),
        ("run -i lo --hedless", "No such option '--hedless'. (Did you mean one of: '--headless'"),
        (
            "trace -i lo 192.0.2.1 --report html",
            "--report 'html' is neither text",
        ),
        ("run -i lo also", "Got unexpected extra argument (also); see --help"),
        ("run -i lp", "no interface 'lp'; "),
        ("run -i lo --interval fast", "--interval: 'fast' is not a number (column 1); units are"),
        ("run -i lo --interval 0", "--interval 0" + EXTENT),
        ("run -i lo --memory 64X", "--memory: 'X' is no unit here (column 3); units are B, kB, "),
        ("run -i lo --headless --memory 100K", "the flow tables of "),
        ("run -i lo --probe-memory much", "--probe-memory: 'much' is not a number"),
        ("run -i lo --interval -1", "--interval -1" + EXTENT),
        ("run -i lo --interval 301", "--interval 301" + EXTENT),
        ("run -i lo --interval nan", "--interval nan" + EXTENT),
        ("run -i lo --duration 0", "--duration 0 is not more than 0"),
        ("run -i lo --duration nan", "--duration nan is not more than 0"),
        ("run -i lo --format yaml", "no format 'yaml'; there are csv, jsonl, json, xml"),
        ("run -i lo --ingress nat", "--ingress 'nat' is not auto, xdp, tc"),
        (
            "run -i lo --headless --views hop",
            "no view 'hop'; there are flows, repeated, interfaces, conversations, hosts, services, "
            "networks, hops, paths, traces, metrics, triggers, policies, sockets, owners, "
            "ownership, windows, events",
        ),
        ("run -i lo --headless --views flows,events", "standard output takes one view, not 2; "),
        ("run -i lo --headless --capture prot:tcp", "--capture: flows have no 'prot' (column 1); "),
        ("run -i lo --headless --capture port:http", "--capture: 'http' is not a port (column 6)"),
        ("run -i lo --headless --capture dir:in", "--capture: 'dir:in' can't choose what is capt"),
        ("run -i lo --headless --capture proc:x", "--capture: 'proc:x' can't choose what is capt"),
        ("run -i lo --headless --filter hop>5", "--filter: flows have no 'hop' (column 1); "),
        (
            "run -i lo --headless --no-owners --views sockets",
            "--views sockets: owners of flows are off; leave out --no-owners",
        ),
        (
            "run -i lo --headless --no-owners --filter proc:x",
            "--filter: the term needs owners of flows, and they are off (column 1); leave out",
        ),
        ("run -i lo --headless --filter @x", "--filter: no filter is saved as 'x' (column 1); "),
        ("run -i lo --headless --views windows --filter tcp", "there is no filter for windows"),
        ("run -i lo --filter tcp", "--filter chooses rows of tables; add --headless"),
        ("lab --headless --rate 99", "traffic rate 99.0 is not possible; 0.1 to 10"),
        ("lab --headless --rate nan", "traffic rate nan is not possible; 0.1 to 10"),
        ("doctor -i lp", "no interface 'lp'; "),
        ("test", "the tests are run by the launcher; ./probedeck test"),
    ],
)
def test_wrong_usage(arguments: str, words: str) -> None:
    code, line = complaint(*arguments.split())
    assert line.startswith(words)
    assert code == 2


def test_the_nearest_interface_is_named_and_no_table_begun(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    code, line = complaint("run", "-i", "loo", "--headless", "-o", str(directory))
    assert (code, line) == (2, "no interface 'loo'; did you mean lo?")
    assert not directory.exists()


def test_a_capture_that_cannot_be_one_touches_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    assert complaint(*HEADLESS, "-o", str(directory), "--capture", "dir:in")[0] == 2
    assert not directory.exists()


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        ("run -i lo", "probedeck run -i lo --headless"),
        ("lab", "probedeck lab --headless --duration 10"),
    ],
)
def test_a_console_needs_a_terminal(arguments: str, instead: str) -> None:
    code, line = complaint(*arguments.split())
    assert (code, line) == (2, f"the console needs a terminal; without one: {instead}")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_a_console_without_standard_input_or_output(closed: str) -> None:
    run = subprocess.run(
        ["bash", "-c", f"{' '.join(COMMAND)} run -i lo {closed}"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, timeout=20,
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr.startswith("probedeck: the console needs a terminal")


CANNOT = "monitoring can't run here: "


@pytest.mark.parametrize(
    ("arguments", "held", "words"),
    [
        ("run -i lo --headless", (), f"{CANNOT}CAP_BPF: .*; run as root, or with CAP_BPF"),
        ("run -i lo --headless", (39, 12), f"{CANNOT}CAP_PERFMON: not held; run as root"),
        ("lab --headless", (12, 13), "making a lab needs CAP_SYS_ADMIN; start it with sudo"),
    ],
)
def test_without_privileges(arguments: str, held: tuple[int, ...], words: str) -> None:
    code, line = complaint(*arguments.split(), preexec_fn=lambda: become_nobody(*held))
    assert code == 4
    assert re.match(words, line)


def test_few_open_files_are_refused_at_the_start() -> None:
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (100, 100))
    code, line = complaint("serve", "-i", "lo", preexec_fn=few)
    assert code == 4
    assert line.startswith(f"{CANNOT}open files: 100 at most, and a run needs ")
    assert "ulimit -n" in line


def test_the_soft_limit_of_open_files_is_raised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both at once: the limit that `main` sets, and its words when that is not enough."""
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits: list[tuple[int, int]] = []

    def run_out(*_: object) -> NoReturn:
        limits.append(resource.getrlimit(resource.RLIMIT_NOFILE))
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(main.cli, "make_context", run_out)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    handler = signal.getsignal(signal.SIGINT)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    try:
        with pytest.raises(SystemExit, match="4"):
            main.main()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        signal.signal(signal.SIGINT, handler)
    assert limits == [(hard, hard)]
    error = capsys.readouterr().err
    assert error.startswith("probedeck: Too many open files; raise the limit of open files")


def test_without_bcc(tmp_path: Path) -> None:
    # The interpreter of the tests, as every venv, does not have it.
    code = (
        "import sys, bpf.compiler.client as client\n"
        "from app.cli.main import main\n"
        "client.SYSTEM_PYTHON = sys.executable\n"
        f"sys.argv = ['probedeck', *{HEADLESS!r}]\n"
        "main()"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=20,
        env={**os.environ, "CACHE_DIRECTORY": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == 4
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert "cannot import bcc" in run.stderr
    assert "apt install python3-bpfcc" in run.stderr


LOADED = """
import atexit, sys
from app.cli import main
sys.argv[1:] = ["run", "-i", "none-such", "--headless"]
atexit.register(lambda: print(*sys.modules))
main.main()
"""


def test_a_run_without_a_console_loads_none_of_it() -> None:
    run = subprocess.run([sys.executable, "-I", "-c", LOADED], capture_output=True, text=True)
    assert run.returncode == 2
    assert "app.run.spec" in run.stdout.split()
    assert not {"app.console", "app.commands", "pydantic"} & set(run.stdout.split())


BUSY = """
import sys, threading, time, pydantic
from app.cli import main

class Model(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def check(cls, value):
        time.sleep(0.0005)
        return value

def run():
    while True:
        Model(number=1)

def report():
    threading.Thread(target=run, daemon=True).start()
    time.sleep(0.02)
    sys.exit(3)

main.main = report
main.program()
"""


def test_a_thread_in_foreign_code_does_not_abort_the_end() -> None:
    command = [sys.executable, "-I", "-c", BUSY]
    run = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert (run.returncode, run.stderr) == (3, "")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    code, line = complaint(*HEADLESS, "-o", str(file))
    assert (code, line) == (2, f"cannot write to {file}: it is not a directory")
    code, line = complaint(*HEADLESS, "-o", "/proc/new")
    assert (code, line) == (2, "cannot write to /proc/new: No such file or directory")


def test_tables_of_another_schema_are_left_alone(tmp_path: Path) -> None:
    table = tmp_path / "flows.csv"
    table.write_text("what,is,this\n1,2,3\n")
    code, line = complaint(*HEADLESS, "-o", str(tmp_path))
    assert code == 2
    assert line.startswith(f"{table} is not a flows/3 table and is left alone; ")
    assert table.read_text() == "what,is,this\n1,2,3\n"


@pytest.mark.slow
def test_full_standard_output() -> None:
    with Path("/dev/full").open("w") as full:
        code, _, err = deck_ends(
            *HEADLESS, "--interval", "0.1", "--ingress", "tc", "--duration", "0.5", stdout=full
        )
    assert code == 1
    assert err.count("standard output: No space left on device") == 1
    assert err.splitlines()[-1].startswith("probedeck: could not be written: ")
    assert "Traceback" not in err
    assert "Exception" not in err


def test_version() -> None:
    assert deck_here("--version") == deck_here("version") == (0, "probedeck 0.6.0\n", "")


def test_without_arguments_it_helps() -> None:
    code, out, err = deck_here()
    assert (code, err) == (0, "")
    assert out == deck_here("--help")[1] == deck_here("-h")[1]
    for command in ("run", "lab", "trace", "doctor", "version"):
        assert re.search(rf"^  {command} +[A-Z].*\.$", out, re.MULTILINE)


@pytest.mark.parametrize(
    "command",
    [
        *("", "run", "lab", "trace", "console", "doctor", "version", "test", "policy"),
        *("policy check", "probe", "probe add", "tape", "config", "config show"),
    ],
)
def test_help_fits_a_terminal(command: str) -> None:
    code, out, err = deck_here(*command.split(), "--help", COLUMNS="80")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: probedeck {command}".rstrip())
    assert max(map(len, out.splitlines())) <= 80
    assert not re.search(r"[a-z,;]\.\.\.", out)  # no text is cut off
    assert "\b" not in out


@pytest.mark.parametrize("command", ["run", "lab", "trace", "console"])
def test_options_stand_in_groups_that_fit_a_screen(command: str) -> None:
    _, out, _ = deck_here(command, "--help", COLUMNS="80")
    groups = re.findall(r"^([A-Z]\w+):\n((?:  .+\n)+)", out, re.MULTILINE)
    assert "-h, --help" in groups[0][1]
    assert max(text.count("\n") for _, text in groups) <= 23
    if command == "run":
        names = ["General", "Packets", "Tables", "Outputs", "Console", "Monitor", "Paths", "API",
                 "Tapes"]  # fmt: skip
        assert [name for name, _ in groups] == names


def test_a_group_without_a_command_shows_its_help_as_an_error() -> None:
    assert deck_here("probe") == (2, "", deck_here("probe", "--help")[1])


def test_the_former_names_of_tapes_are_understood() -> None:
    assert deck_here("macro", "states") == deck_here("tape", "states")
    for option in ("--tape", "--macro"):
        _, _, err = deck_here(*HEADLESS, option, "none-such")
        assert err.startswith("probedeck: there is no tape 'none-such'")


@pytest.mark.parametrize("command", ["run", "lab", "trace", "doctor"])
def test_examples_in_the_help_are_understood(command: str) -> None:
    """All of their options exist: what is wrong is only what this puts in."""
    examples = re.findall(r"^ +probedeck (.*)$", deck_here(command, "--help")[1], re.MULTILINE)
    assert examples
    for example in examples:
        arguments = example.partition(" | ")[0].replace("eth0", "none-such")
        if command == "lab":
            arguments += " --rate 99"
        _, _, err = deck_here(*shlex.split(arguments))
        assert re.match(
            r"probedeck: (no interface 'none-such'|the console needs a|traffic rate 99|"
            r"cannot read attack.pcap|cannot run iperf3)",
            err,
        )


def test_a_ctrl_c_that_python_drops_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dropping:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def drop() -> None:
        Dropping()
        time.sleep(10)

    monkeypatch.setattr(sys, "unraisablehook", main._interrupt_again)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            drop()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_reader_that_has_left_is_no_error() -> None:
    for arguments in ("version", "--version"):
        run = subprocess.run(
            ["bash", "-c", f"{' '.join(COMMAND)} {arguments} | true; echo ${{PIPESTATUS[0]}}"],
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip
        assert (run.stdout, run.stderr) == ("0\n", "")


def test_a_wheel_has_every_file_that_commands_read() -> None:
    root = Path(app.__file__).parents[1]
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    packed = {pattern.removeprefix("**/*") for pattern in settings["package-data"]["*"]}
    assert "app/library" in str(TOUR_PROBE)
    for package in settings["packages"]["find"]["include"]:
        # The library and some kernel headers are symbolic links.
        for folder, _, files in os.walk(root / package.rstrip("*"), followlinks=True):
            others = {Path(name).suffix for name in files if name.count(".") < 2} - packed
            assert others <= {".py", ".pyc", ".md", ".json", ""}, folder
