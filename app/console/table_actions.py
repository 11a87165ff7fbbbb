"""What an operator does with the table in front, whichever that is: columns, copying, files."""

from __future__ import annotations

from pathlib import Path

from textual.app import App

from app.commands.export_target import PICTURE, TEXT, VALUES, suffix_of, target
from app.commands.tables import USUAL, columns_of
from app.console.overwriting import Overwriting
from app.console.screen import ConsoleScreen, counted
from app.console.tables import clipboard
from app.console.tasks import Task
from bpf.errors import UsageError, did_you_mean
from widgets.format import REPLACED, byte_size, safe
from widgets.table.table import VirtualTable

_OTHERS = " ".join(f".{suffix}" for suffix in (*VALUES[1:], TEXT))
_EXAMPLE = f"flows.{VALUES[0]}; also {_OTHERS}, .svg is a picture"
ROW, TABLE = "row", "table"


class TableApp(App[int]):
    """An app whose screens have tables."""

    overwriting: Overwriting

    def front_screen(self) -> ConsoleScreen:
        """The full screen in front."""
        raise NotImplementedError

    def do_view_columns(self, columns: str = "") -> None:
        table = self.front_screen().table_with()
        names = columns_of(columns)
        if names:
            table.choose(() if names == (USUAL,) else names)
        else:
            from app.console.dialogs.columns import ColumnsScreen

            self.push_screen(ColumnsScreen(table))

    def do_view_copy(self, what: str = ROW) -> None:
        screen = self.front_screen()
        focused = screen.focused
        table = focused if isinstance(focused, VirtualTable) else screen.table_with()
        if not table.source.rows:
            raise UsageError("there is no row to copy")
        text, said = self._copied(table, what)
        if (size := len(text.encode())) > clipboard.MOST:
            most = byte_size(clipboard.MOST)
            raise UsageError(f"{byte_size(size)} are more than terminals take, {most}")
        self.copy_to_clipboard(text)
        self.notify(said, timeout=2.0, markup=False)

    def _copied(self, table: VirtualTable, what: str) -> tuple[str, str]:
        """A text, and what is said of it."""
        if what == TABLE:
            text, rows = clipboard.rows_text(table)
            total = table.source.rows
            of = f" of {total}: terminals take no more; E writes all" if rows < total else ""
            return text, f"copied {counted(rows, 'row')}{of}"
        if what == ROW:
            return clipboard.row_text(table, table.cursor_index), "copied 1 row"
        for place, column in enumerate(table.columns):
            if column.id == what:
                text = clipboard.cell_text(table.source, table.cursor_index, place)
                return text, f"copied {what} {safe(text, REPLACED)}"
        known = (ROW, TABLE, *(column.id for column in table.columns))
        raise UsageError(f"there is no {what!r} to copy", hint=did_you_mean(what, known))

    def do_view_export(self, file: str = "", overwrite: str = "") -> None:
        from app.console.tables import export

        screen = self.front_screen()
        if not file:
            screen.prompt.ask("view.export", "Write to", _EXAMPLE, "")
            return
        path = target(file)
        self.overwriting.check(path, overwrite, prompt=screen.prompt.is_open)
        task = Task(f"writing {path.name}")
        if suffix_of(path) == PICTURE:
            # Not of the prompt, which is closed only now.
            screen.call_after_refresh(self._write_picture, screen, path, task)
            return
        view = export.TableContent.of(screen.table_with())

        def write() -> int:
            return export.write_view(path, view, task.progress)

        def written(rows: int) -> None:
            self._say_written(path, counted(rows, "row"))

        screen.run_in_worker(write, written, screen.console.complain, task=task)

    def _write_picture(self, screen: ConsoleScreen, path: Path, task: Task) -> None:
        from app.console.tables import export

        if screen.prompt.region.height and not screen.prompt.is_open:
            # It is closed, but still drawn.
            screen.call_after_refresh(self._write_picture, screen, path, task)
            return
        drawn = self.export_screenshot(title=f"probedeck: {self.current_mode}").encode()
        screen.run_in_worker(
            lambda: export.write(path, [drawn]),
            lambda _: self._say_written(path, "a picture of the screen"),
            screen.console.complain,
            task=task,
        )

    def _say_written(self, path: Path, what: str) -> None:
        self.notify(safe(f"{path}: {what}", REPLACED), markup=False)
