"""Commands about the table in front: cursor, focus, columns, copying, files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from app.commands.export_target import DRAWN, PICTURE_NAME, TEXT, VALUES, suffix_of, target
from app.commands.model import USUAL, columns_of
from app.console.protocol import Console
from app.console.screen import ConsoleScreen, front_screen
from app.console.tables import export
from app.console.tasks import Task
from bpf.errors import UsageError, did_you_mean, printable
from bpf.quantities import REPLACED, byte_size, counted
from widgets.table.table import VirtualTable
from widgets.terminal.keybar import KeyBar

_OTHERS = " ".join(f".{suffix}" for suffix in (*VALUES[1:], TEXT))
_EXAMPLE = f"flows.{VALUES[0]}; also {_OTHERS}; .svg and .png are pictures"
ROW, TABLE = "row", "table"


def _on_table(act: Callable[[VirtualTable], None]) -> Callable[[TableCommands], None]:
    return lambda commands: act(commands._table)


def _by_count(act: Callable[[VirtualTable, int], None]) -> Callable[..., None]:
    return lambda commands, count=1: act(commands._table, count)


class TableCommands:
    """Runs the commands `table.*`, `pane.*`, `view.columns`, `view.copy` and `view.export`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @property
    def _screen(self) -> ConsoleScreen:
        return front_screen(self._console.app)

    @property
    def _table(self) -> VirtualTable:
        """The table with the focus, or else the first. Raises UsageError without a table."""
        screen = self._screen
        if isinstance(screen.focused, VirtualTable):
            return screen.focused
        found = [table for table in screen.query(VirtualTable) if table.display]
        if not found:
            raise UsageError("there is no table here")
        return found[0]

    do_table_down = _by_count(lambda table, count: table.action_move(count))
    do_table_up = _by_count(lambda table, count: table.action_move(-count))
    do_table_page_down = _by_count(lambda table, count: table.action_page(count))
    do_table_page_up = _by_count(lambda table, count: table.action_page(-count))
    do_table_half_down = _by_count(lambda table, count: table.action_page(count / 2))
    do_table_half_up = _by_count(lambda table, count: table.action_page(-count / 2))
    do_table_left = _by_count(lambda table, count: table.action_scroll_columns(-count))
    do_table_right = _by_count(lambda table, count: table.action_scroll_columns(count))
    do_table_top = _on_table(VirtualTable.action_top)
    do_table_select = _on_table(VirtualTable.action_select)

    def do_table_first(self, row: int | None = None) -> None:
        if row is None:
            self.do_table_top()
        else:
            self._table.move_to(row - 1)

    def do_table_last(self, row: int | None = None) -> None:
        table = self._table
        table.move_to((row or table.source.rows) - 1)

    def do_pane_next(self) -> None:
        self._screen.focus_next()

    def do_pane_previous(self) -> None:
        self._screen.focus_previous()

    def do_view_columns(self, columns: str = "") -> None:
        table = self._screen.table_with()
        names = columns_of(columns)
        if names:
            table.choose(() if names == (USUAL,) else names)
        else:
            from app.console.dialogs.columns import ColumnsScreen

            self._console.app.push_screen(ColumnsScreen(table))

    def do_view_copy(self, what: str = ROW) -> None:
        screen = self._screen
        focused = screen.focused
        table = focused if isinstance(focused, VirtualTable) else screen.table_with()
        if not table.source.rows:
            raise UsageError("there is no row to copy")
        text, said = self._copied(table, what)
        if (size := len(text.encode())) > export.MOST:
            most = byte_size(export.MOST)
            raise UsageError(f"{byte_size(size)} are more than terminals take, {most}")
        self._console.app.copy_to_clipboard(text)
        self._console.app.notify(said, timeout=2.0, markup=False)

    def _copied(self, table: VirtualTable, what: str) -> tuple[str, str]:
        """Return a text of the table, and the message about it."""
        if what == TABLE:
            text, rows = export.rows_text(table)
            total = table.source.rows
            of = f" of {total}: terminals take no more; E writes all" if rows < total else ""
            return text, f"copied {counted(rows, 'row')}{of}"
        if what == ROW:
            return export.row_text(table, table.cursor_index), "copied 1 row"
        for position, column in enumerate(table.columns):
            if column.id == what:
                text = export.cell_text(table.source, table.cursor_index, position)
                return text, f"copied {what} {printable(text, REPLACED)}"
        known = (ROW, TABLE, *(column.id for column in table.columns))
        raise UsageError(f"there is no {what!r} to copy", hint=did_you_mean(what, known))

    def do_view_export(self, file: str = "", overwrite: str = "") -> None:
        from app.console.tables import export

        screen = self._screen
        if not file:
            screen.prompt.ask("view.export", "Write to", _EXAMPLE, "")
            return
        path = target(file)
        self._console.overwriting.check(path, overwrite, prompt=screen.prompt.is_open)
        task = Task(f"writing {path.name}")
        if suffix_of(path) in DRAWN:
            # The picture must not show the prompt, which closes only now.
            screen.call_after_refresh(self._write_picture, screen, path, task)
            return
        view = export.TableContent.of(screen.table_with())

        def write() -> int:
            return export.write_view(path, view, task.progress)

        def written(rows: int) -> None:
            self._notify_written(path, counted(rows, "row"))

        screen.run_in_worker(write, written, self._console.complain, task=task)

    def do_view_screenshot(self, file: str = "", overwrite: str = "") -> None:
        now = f"{datetime.now(UTC):%H%M%S}"
        name = PICTURE_NAME.replace("VIEW", self._console.app.current_mode).replace("TIME", now)
        target(file or name, DRAWN)
        self.do_view_export(file or name, overwrite)

    def _write_picture(self, screen: ConsoleScreen, path: Path, task: Task) -> None:
        from app.console.tables import export

        closed = screen.prompt.region.height and not screen.prompt.is_open
        if closed or not screen.query_one(KeyBar).is_current:
            # The prompt is closed, but it and its keys are still drawn.
            screen.call_after_refresh(self._write_picture, screen, path, task)
            return
        drawn = export.svg(self._console.app)
        screen.run_in_worker(
            lambda: export.write(path, [export.encoded(drawn, suffix_of(path))]),
            lambda _: self._notify_written(path, "a picture of the screen"),
            self._console.complain,
            task=task,
        )

    def _notify_written(self, path: Path, what: str) -> None:
        self._console.app.notify(printable(f"{path}: {what}", REPLACED), markup=False)
