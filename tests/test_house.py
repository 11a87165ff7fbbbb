"""The house rules that a linter does not know, held against the syntax trees of the sources."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import pkgutil
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import textual

ROOT = Path(__file__).parents[1]
PRODUCT = ("app", "bpf", "probes", "widgets")
MAX_LINES = 450
MIN_LINES = 30
SMALL = {
    "app/console/tables/label_lines.py": "three screens have such a detail",
    "app/api/connection_events.py": "one host and a fleet say the same words",
    "app/exporters/files/options.py": "options are read before DuckDB is imported",
    "app/exporters/openmetrics/options.py": "options are read before prometheus_client is imported",
    "probes/config/formats.py": "the first paint imports it without pydantic",
    "probes/flow/kinds.py": "the command line reads it without numpy",
    "probes/path/marks.py": "four probes share it",
}
"""Modules of fewer lines, each with the reason to open one more."""
MAX_MODULES = 15
MAX_METHODS = 30
PRIVATE_HOMES = ("widgets.terminal", "widgets.table")
"""Packages that may use private parts of Textual, as its version is pinned."""


BUDGETS = {
    "app": (395, "files, names of addresses, the store, events and JUnit of all commands"),
    "app/api": (1840, "REST, its client, and the defence against hostile clients"),
    "app/cli": (1456, "one file a command of the shell"),
    "app/commands": (740, "commands of console, tapes and REST, declared once"),
    "app/config": (560, "settings, themes, and mistakes with their line"),
    "app/console": (
        13164,
        "seven screens, with dialogs, time travel and tapes: most of what people see",
    ),
    "app/doctor": (535, "a check for each requirement, and the cost of a packet"),
    "app/explain": (675, "sentences about one conversation"),
    "app/exporters": (3425, "six receivers with queues, retries and exact counts"),
    "app/fleet": (1440, "many hosts: links that come and go, and one sum"),
    "app/lab": (
        2112,
        "networks of namespaces, replay, captures in batches of frames, a program that feeds them "
        "to a chain, and policies over captures and recordings",
    ),
    "app/outputs": (1705, "each table as columns, and reports"),
    "app/recording": (
        1203,
        "frames, segments, sums, a reader that damage does not stop, and captures as pcapng",
    ),
    "app/run": (1140, "options of a run, and its life without a screen"),
    "app/tape": (1030, "a language with its player and recorder"),
    "bpf": (
        7304,
        "interfaces, maps, links, sockets, the compile helper, stored programs, and headers",
    ),
    "bpf/objects": (780, "programs for libbpf and ready objects: clang and libbpf in a child"),
    "probes": (2955, "snapshots, the life of a probe, the poller, the catalogue of operations"),
    "probes/config": (
        1052,
        "what a user's probe may say, with all mistakes, and how options are declared",
    ),
    "probes/control": (1603, "the controller, its probes, the CPU budget, and stored programs"),
    "probes/filter": (970, "one language for capture, tables and policies"),
    "probes/flow": (1132, "flows to the packet, by interface, in C and numpy"),
    "probes/monitor": (
        6102,
        "metrics, conditions, policies, nine applications in C, and actions on packets",
    ),
    "probes/path": (6155, "probing without harm, and the analysis of routes, loss and queues"),
    "probes/program": (715, "users' programs: compile, compare, replace, roll back"),
    "probes/ring": (530, "the last packets of selected flows, with the fate of each"),
    "probes/sockets": (1890, "owners of flows, and the health of connections"),
    "widgets": (2205, "table, terminal and charts: Textual's are too slow for ten thousand rows"),
}
"""Statements that a room may have, and its work. Whoever raises a number gives the reason in the
commit. Rooms that are not listed count to the room above."""


def files(*suffixes: str, under: tuple[str, ...] = (*PRODUCT, "tests", "bench")) -> list[Path]:
    return sorted(
        path
        for folder in under
        for suffix in suffixes
        for path in (ROOT / folder).rglob(f"*{suffix}")
    )


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@functools.cache
def product() -> dict[str, ast.Module]:
    return {module_name(path): tree(path) for path in files(".py", under=PRODUCT)}


def test_no_file_is_too_long() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in files(".py", ".c", ".h")
        if not path.is_symlink()
    }
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_folder_has_too_many_modules() -> None:
    modules = Counter(path.parent for path in files(".py") if path.name != "__init__.py")
    assert {
        str(folder.relative_to(ROOT)): count
        for folder, count in modules.items()
        if count > MAX_MODULES
    } == {}


def statements(path: Path) -> int:
    """Count Python's statements without docstrings; of C, semicolons, macros and branches."""
    if path.suffix == ".py":
        return sum(
            isinstance(node, ast.stmt)
            and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            for node in ast.walk(tree(path))
        )
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
    macros = re.findall(r"^\s*#\s*define|\b(?:if|for|while|switch)\s*\(", code, re.MULTILINE)
    return code.count(";") + len(macros)


def test_a_module_is_worth_opening() -> None:
    small = {
        str(path.relative_to(ROOT))
        for path in files(".py", under=PRODUCT)
        if not path.stem.startswith("__") and len(path.read_text().splitlines()) < MIN_LINES
    }
    assert small == SMALL.keys()


def test_no_room_outgrows_its_budget() -> None:
    found: Counter[str] = Counter()
    for path in files(".py", ".c", ".h", under=PRODUCT):
        if not path.is_symlink():
            parents = [str(each) for each in path.relative_to(ROOT).parents]
            found[next(each for each in parents if each in BUDGETS)] += statements(path)
    over = {room: count for room, count in found.items() if count > BUDGETS[room][0]}
    assert over == {}


def test_a_public_class_has_a_name_of_its_own() -> None:
    modules = defaultdict(set)
    for module, parsed in product().items():
        for node in parsed.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].add(module)
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}


def test_no_class_has_too_many_methods() -> None:
    methods = {
        f"{module}.{node.name}": sum(
            isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body
        )
        for module, parsed in product().items()
        for node in ast.walk(parsed)
        if isinstance(node, ast.ClassDef)
    }
    assert {name: count for name, count in methods.items() if count > MAX_METHODS} == {}


def imports(module: str) -> set[str]:
    """Return the modules that a module imports, also for type checking and in functions."""
    names = product()
    found = set()
    for node in ast.walk(names[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in names else node.module)
    return found & names.keys() - {module}


def circles() -> Iterator[list[str]]:
    """Yield the import circles: strongly connected components (Tarjan, SIAM J. Comput., 1972)."""
    graph = {module: sorted(imports(module)) for module in product()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    count = itertools.count()

    def visit(module: str) -> Iterator[list[str]]:
        index[module] = low[module] = next(count)
        stack.append(module)
        for other in graph[module]:
            if other not in index:
                yield from visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            circle = stack[stack.index(module) :]
            del stack[-len(circle) :]
            if len(circle) > 1:
                yield circle

    for module in graph:
        if module not in index:
            yield from visit(module)


def test_there_is_no_import_circle() -> None:
    assert list(circles()) == []


@functools.cache
def textual_private() -> frozenset[str]:
    """Return all private names of attributes and methods in Textual's sources."""
    names = set()
    for path in Path(textual.__file__).parent.rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return frozenset(name for name in names if is_private(name))


def is_private(name: str) -> bool:
    return len(name) > 1 and name[0] == "_" != name[1]


def outside() -> dict[str, ast.Module]:
    """Return the modules that know Textual, without those that may use its private parts."""
    return {
        module: parsed for module, parsed in product().items()
        if module.startswith(("app.console", "widgets")) and not module.startswith(PRIVATE_HOMES)
    }  # fmt: skip


def own_names(parsed: ast.Module) -> set[str]:
    """Return the private names that a module defines: functions, attributes, fields."""
    names = set()
    for node in ast.walk(parsed):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Attribute(value=ast.Name("self"), ctx=ast.Store()):
                names.add(node.attr)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
    return names


def test_private_names_of_textual_are_used_in_two_packages_only() -> None:
    used = set()
    for module, parsed in outside().items():
        own = own_names(parsed)
        for node in ast.walk(parsed):
            match node:
                case ast.ImportFrom(module=str(source)) if source.startswith("textual"):
                    names = [*source.split("."), *(alias.name for alias in node.names)]
                    used |= {(module, name) for name in names if is_private(name)}
                case ast.Attribute(attr=name) if is_private(name) and name not in own:
                    if name in textual_private():
                        used.add((module, name))
    assert used == set()


def classes() -> Iterator[type]:
    for package in ("app.console", "widgets"):
        for info in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not info.name.startswith(PRIVATE_HOMES):
                for _, found in inspect.getmembers(importlib.import_module(info.name)):
                    if inspect.isclass(found) and found.__module__ == info.name:
                        yield found


@functools.cache
def defined(of: type) -> frozenset[str]:
    """Return the private names that a class defines in its body or assigns to `self`."""
    try:
        parsed = ast.parse(textwrap.dedent(inspect.getsource(of)))
    except OSError:
        return frozenset()
    return frozenset(name for name in own_names(parsed) if is_private(name))


def test_no_class_overrides_a_private_name_of_textual() -> None:
    overridden = set()
    for found in classes():
        for base in found.__mro__[1:]:
            if base.__module__.split(".")[0] == "textual":
                overridden |= {
                    (found.__qualname__, name) for name in defined(found) & defined(base)
                }
    assert overridden == set()
