"""A new kind of outputs is one entry: a run delivers to it, with counts, retries and help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOY = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from dataclasses import dataclass
from app.exporters.exporter import DeliveryError
from app.exporters.kinds import ExporterKind, UrlPlace, register
from app.exporters.options import ExporterOptions, option

@dataclass(frozen=True, slots=True)
class ToyOptions(ExporterOptions):
    greeting: str = option("hello", "First line of the file.")

class Toy:
    def __init__(self, host):
        self.path, self.greeting = host.config.path, host.config.options.greeting
        self.failures = 1
    def records(self, item):
        return getattr(item, "probe", "") == "flow"
    def open(self):
        with open(self.path, "a") as file:
            print(self.greeting, file=file)
    def deliver(self, item, skip):
        if self.failures:
            self.failures -= 1
            raise DeliveryError("not yet")
        with open(self.path, "a") as file:
            print("window", item.window, file=file)
    def tick(self):
        pass
    def close(self):
        with open(self.path, "a") as file:
            print("end", file=file)

sys.modules["toys"] = sys.modules["__main__"]
register(ExporterKind("toy", "Writes the numbers of windows.", "toy:PATH", ToyOptions, "toys:Toy",
                      place=UrlPlace.PATH))
"""
COMMAND = """
from app.cli.main import main
sys.argv[1:] = {arguments}
main()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-I", "-c", TOY + COMMAND.format(arguments=list(arguments)))
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_help_lists_it() -> None:
    assert "toy" in run("run", "--help").stdout


@pytest.mark.slow
def test_a_run_delivers_to_it(tmp_path: Path) -> None:
    file = tmp_path / "toy file"
    url = f"toy:{tmp_path}/toy%20file?greeting=hi+there"
    options = ("--headless", "--duration", "0.6", "--interval", "0.1", "--views", "windows")
    ended = run("run", "-i", "lo", *options, "--output", url)
    assert ended.returncode == 0, ended.stderr
    first, again, *windows, end = file.read_text().splitlines()
    assert (first, again, end) == ("hi there", "hi there", "end"), "opened again after a failure"
    numbers = [int(line.removeprefix("window ")) for line in windows]
    assert numbers == list(range(1, len(numbers) + 1)), "no window is lost or delivered twice"
    assert len(numbers) >= 5
    assert "does not take records: not yet" in ended.stderr
    assert "takes records again" in ended.stderr
    assert f"output toy: {len(numbers)} records delivered, 0 undelivered" in ended.stderr


def test_a_mistake_names_the_option_and_ends_the_run() -> None:
    wrong = run("run", "-i", "lo", "--headless", "--output", "toy:/x?greetings=hi")
    assert wrong.returncode == 2
    assert "toy output: no option 'greetings'; did you mean greeting?" in wrong.stderr
