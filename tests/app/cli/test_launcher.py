"""The launcher, with a package manager and a Python that only pretend."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OLD = 'case "$*" in *print*) echo 3.10 ;; *) exit 1 ;; esac\n'
NEW = 'case "$*" in *print*) echo 3.12 ;; *venv*) exit 1 ;; esac\n'
"""A Python that is new enough, and cannot make a venv."""
LOCKED = """\
count=$(cat {0}/count 2>/dev/null || echo 0)
echo $((count + 1)) >{0}/count
if [ "$count" -lt 2 ]; then
    echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt)' >&2
    exit 100
fi
echo "$*" >>{0}/done
"""


class Machine:
    """A copy of the launcher, and commands that it finds first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.commands = path / "bin"
        self.commands.mkdir()
        for name in ("probedeck", "requirements.txt", "requirements-dev.txt"):
            shutil.copy(ROOT / name, path)

    def command(self, name: str, text: str) -> Path:
        command = self.commands / name
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(f"#!/bin/sh\n{text}")
        command.chmod(0o755)
        return command

    def run(self, *arguments: str, python: str = "") -> subprocess.CompletedProcess[str]:
        """Start the launcher; with `python` that text is the system's Python."""
        command = [str(self.path / "probedeck"), *arguments]
        if python:
            fake = self.command("fake-python", python)
            mount = f"mount --bind {fake} /usr/bin/python3 && exec " + '"$0" "$@"'
            command = ["unshare", "--mount", "sh", "-c", mount, *command]
        path = f"{self.commands}:/usr/sbin:/usr/bin:/sbin:/bin"
        return subprocess.run(
            command, env={"PATH": path}, capture_output=True, text=True, timeout=30, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_old_python_is_told_before_anything_is_installed(machine: Machine) -> None:
    machine.command("dpkg-query", "exit 1\n")
    machine.command("apt-get", f"echo called >{machine.path}/apt\n")
    run = machine.run("--version", python=OLD)
    assert run.returncode == 4
    needed = "needs Python 3.11 or newer at /usr/bin/python3; found 3.10"
    assert run.stderr == f"probedeck: {needed}\n"
    assert not (machine.path / "apt").exists()
    assert not (machine.path / ".venv").exists()


def test_it_waits_while_another_program_uses_apt(machine: Machine) -> None:
    machine.command("dpkg-query", "exit 1\n")
    machine.command("apt-get", LOCKED.format(machine.path))
    machine.command("sleep", "")
    run = machine.run(python=NEW)
    assert (machine.path / "done").read_text().splitlines() == [
        "update",
        "install -y --no-install-recommends python3-bpfcc linux-libc-dev python3-venv",
    ]
    assert run.stderr.count("another program is using apt; waiting for it") == 1
    assert run.returncode == 1
    assert "could not make a Python environment" in run.stderr


def test_what_apt_says_is_shown_if_it_fails(machine: Machine) -> None:
    machine.command("dpkg-query", "exit 1\n")
    machine.command("apt-get", "echo 'E: Unable to locate package python3-bpfcc'; exit 100\n")
    run = machine.run(python=NEW)
    assert run.returncode == 4
    assert "E: Unable to locate package python3-bpfcc" in run.stderr
    assert run.stderr.count("waiting") == 0


_BESIDE = "--dist loadfile --no-loadscope-reorder -m"
PARTS = f"-n 4 {_BESIDE} not timing and not repeats{{}}", f"-n 2 {_BESIDE} timing{{}}"
AGAIN = "--last-failed --last-failed-no-failures none --maxfail 10"


@pytest.mark.parametrize(
    ("command", "codes", "repeats", "code"),
    [
        ("test", "0 0", 0, 0),
        ("test --all", "0 0", 0, 0),
        ("test", "1 0 0", 1, 0),
        ("test --all", "0 1 1 0", 2, 0),
        ("test", "1 0 1 1", 2, 1),
        ("test", "1 1 1 1", 2, 1),
        ("test", "1 2", 0, 2),
        ("test", "3 0", 0, 3),
    ],
)
def test_both_parts_of_the_tests_run_and_failed_tests_run_again(
    machine: Machine, command: str, codes: str, repeats: int, code: int
) -> None:
    """`codes` are pytest's exit codes in turn. Pytest keeps the times of tests, for the record."""
    log, left = machine.path / "log", machine.path / "codes"
    left.write_text("\n".join(codes.split()))
    keep = 'echo "1.5 a::test" >>"$TIMES_OF_TESTS"; echo "$*"'
    script = f'{keep} >>{log}\ncode=$(head -n 1 {left})\nsed -i 1d {left}\nexit "$code"\n'
    machine.command("../.venv/bin/python", script)
    version = os.path.basename(os.path.realpath("/usr/bin/python3"))
    for name in ("requirements", "requirements-dev"):
        stamp = machine.path / ".venv" / f"stamp-{name}-{version}"
        shutil.copy(machine.path / f"{name}.txt", stamp)
    run = machine.run(*command.split())
    started, caches = [], set()
    for line in log.read_text().splitlines():
        cache, _, rest = line.removeprefix("-I -m pytest -q -o cache_dir=").partition(" ")
        started.append(rest)
        caches.add(cache)
    some = "" if "--all" in command else " and not slow"
    assert started == [*(part.format(some) for part in PARTS), *[AGAIN] * repeats]
    assert ("the slowest tests" in run.stdout) == ("--all" in command)
    assert "1.5 a::test\n" in (machine.path / ".venv/test-times").read_text()
    assert run.returncode == code
    (cache,) = caches
    assert not Path(cache).exists()
