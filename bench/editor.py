"""CPU time of a key in the source editor, as a ratio to Textual's own text area:

python -I -m bench.editor [--lines 400 2000 20000] [--keys 30]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

from textual.app import ComposeResult
from textual.widgets import TextArea

from bench.support.report import Report
from probes.flow.hook import SOURCE
from widgets.editor import LANGUAGE, QUERY, CodeEditor
from widgets.terminal.compositor import DiffApp

_ROUNDS = 3


class _Bed(DiffApp[None]):
    def __init__(self, area: TextArea) -> None:
        super().__init__()
        self.area = area

    def compose(self) -> ComposeResult:
        yield self.area


def source(lines: int) -> str:
    """Return the flow probe's C, repeated up to a number of lines."""
    text = SOURCE.read_text().splitlines()
    return "\n".join((text * (lines // len(text) + 1))[:lines])


def stock(text: str) -> TextArea:
    """Return Textual's own text area with the editor's grammar."""
    area = TextArea("", soft_wrap=False, tab_behavior="indent", show_line_numbers=True)
    area.register_language("c", LANGUAGE, QUERY)
    area.language = "c"
    area.load_text(text)
    return area


async def key(area: TextArea, keys: int) -> float:
    """Return the median CPU time of a key, in seconds."""
    async with _Bed(area).run_test(size=(120, 40)) as pilot:
        area.focus()
        area.move_cursor((area.document.line_count // 2, 0))
        await pilot.pause()
        times = []
        for _ in range(keys):
            before = time.process_time()
            await pilot.press("a")
            times.append(time.process_time() - before)
        return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, nargs="+", default=[400, 2000, 20_000])
    parser.add_argument("--keys", type=int, default=30)
    args = parser.parse_args()
    makers: tuple[Callable[[str], TextArea], ...] = (CodeEditor, stock)
    report = Report("a key in the middle of a C source, CPU time")
    for lines in args.lines:
        text = source(lines)
        rounds = [
            [asyncio.run(key(make(text), args.keys)) for make in makers] for _ in range(_ROUNDS)
        ]
        ours, theirs = (statistics.median(times) for times in zip(*rounds, strict=True))
        report.target(
            f"{lines} lines",
            f"{ours * 1e3:.1f} ms, stock {theirs * 1e3:.1f} ms, ratio {ours / theirs:.2f}",
            ours < theirs,
        )
    report.end()


if __name__ == "__main__":
    main()
