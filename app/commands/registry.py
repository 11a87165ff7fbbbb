"""All commands by screen, in the order of help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from app.commands import own, remote, values
from app.commands.export_target import DRAWN, OVERWRITE, PICTURE_NAME, VALUES, target
from app.commands.flow_view import GROUP_NOUNS, VIEWS
from app.commands.model import Command, Parameter, ParameterKind, Remote, Saved
from app.console.screens import SCREENS, register
from app.console.screens.info import ScreenInfo
from probes.control_plane import OPERATIONS, OutputCalls, RemoteCalls
from probes.operation import Operation
from probes.switches import SWITCHES

_FILE = Parameter("file", ParameterKind.FILE)
_OVERWRITE = Parameter("overwrite", ParameterKind.CHOICE, (OVERWRITE,))
_POLICY = Parameter("policy", ParameterKind.POLICY)
_NEW_POLICY = Parameter("policy", ParameterKind.NEW_POLICY, rest=True, check=values.policy)
_PROBE = Parameter("probe", ParameterKind.PROBE)
_DESTINATION = Parameter("destination", ParameterKind.DESTINATION)
_WINDOWS = Parameter("windows", ParameterKind.COUNT)
_COUNT = Parameter("count", ParameterKind.COUNT)
_ROW = Parameter("row", ParameterKind.COUNT)
_LINE = Parameter("command", ParameterKind.COMMAND, rest=True)
_ON_OFF = Parameter("choice", ParameterKind.CHOICE, ("on", "off"))
_LAYOUT = Parameter("layout", ParameterKind.LAYOUT, check=values.layout)


def _filter(check: Callable[[str, Saved], object]) -> tuple[Parameter]:
    return (Parameter("filter", ParameterKind.FILTER, rest=True, check=check),)


def said(
    operation: Operation[..., Any], *parameters: Parameter,
    run: Remote | None = None, local: bool = False, asks: bool = False,
) -> Command:  # fmt: skip
    """Return the command of an operation, by default with the arguments of its method."""
    words = operation.command
    assert words
    found = (_parameter(operation, each) for each in operation.parameters)
    if operation.writes:
        run = run or partial(remote.call, operation)
    return Command(
        words.name, words.title, words.key, words.screen, words.footer,
        parameters or tuple(filter(None, found)), words.help, writes=operation.writes, local=local,
        asks=asks, remote=run, task=words.task, needs=operation.needed,
    )  # fmt: skip


def _parameter(operation: Operation[..., Any], of: inspect.Parameter) -> Parameter | None:
    """Return the parameter of an argument; None if an operator does not choose it."""
    if of.kind is of.KEYWORD_ONLY:
        return None
    if of.name == "name" and operation.is_named:
        return _PROBE if operation.route.startswith("probes/") else _POLICY
    if of.annotation == "FlowFilter" or of.name == "filter":
        return _filter(values.capture_filter)[0]
    if of.name == "destination":
        return replace(_DESTINATION, check=values.address)
    kinds = {"int": ParameterKind.COUNT, "str": ParameterKind.TEXT}
    return Parameter(of.name, kinds[of.annotation]) if of.annotation in kinds else None


def _sorting(prefix: str, screen: str, *tables: str, footer: str = "") -> tuple[Command, ...]:
    column = Parameter("column", ParameterKind.COLUMN, tables=tables)
    return (
        Command(f"{prefix}.sort", "Sort by the next column", "s", screen, footer, (column,)),
        Command(f"{prefix}.reverse", "Reverse the order", "S", screen),
    )


def _view(screen: ScreenInfo) -> Command:
    return Command(f"view.{screen.name}", screen.title, screen.key, footer=screen.title)


def _culprit(prefix: str, screen: str) -> tuple[Command, ...]:
    return (
        Command(f"{prefix}.flows", "Flows of the culprit", "f", screen),
        Command(f"{prefix}.trace", "Trace the path to the culprit", "T", screen, writes=True,
                help="Of the largest of its flows that this host answers."),
        Command(f"{prefix}.capture", "Count only the culprit's flows", "C", screen, "",
                _filter(values.capture_filter), writes=True, asks=True),
    )  # fmt: skip


_EVERYWHERE = (
    *map(_view, SCREENS.values()),
    Command("view.pause", "Pause the view; counting goes on", "space", footer="Pause"),
    Command("dns.show", "DNS: names, answer codes and times", "D", writes=True,
            help="Starts the ready probe dns, which counts from then on and sends no packet."),
    Command("probe.info", "Programs: run time and memory", "i"),
    *(Command(each.command, each.title, each.key, parameters=(_ON_OFF,), writes=True,
              help=each.help, remote=partial(remote.switch, each.name), task=each.task)
      for each in SWITCHES.values()),
    Command("output.list", "Outputs: delivered, undelivered, waiting",
            help="What leaves this run by --output, [[outputs]] or output.add."),
    said(OutputCalls.add, Parameter("url", rest=True, needed=True, check=values.output),
          local=True),
    said(OutputCalls.remove, Parameter("name", needed=True)),
    said(RemoteCalls.stop_actions),
    said(RemoteCalls.keep_packets),
    said(RemoteCalls.write_packets, _POLICY),
    said(RemoteCalls.release_packets),
    Command("help.keys", "Keys of this screen", "question_mark", footer="Keys"),
    Command("help.focus", "Explain the focused part", "f1"),
    Command("help.tour", "Start the tour"),
    Command("tour.next", "Next step of the tour", "ctrl+n"),
    Command("tour.end", "End the tour"),
    Command("app.prompt", "Type a command", "colon", parameters=(_LINE,), asks=True),
    Command("app.palette", "All commands", "ctrl+p", footer="Commands"),
    Command("app.count", "Type a number for the next key", "apostrophe",
            help="'5j goes five rows down, '10G to row 10, '3[ three windows back. The next key"
            " that takes a number gets it; esc forgets it. Digits alone turn to the screens. In the"
            " prompt, :10 goes to row 10, and :+5 or :-5 moves by rows."),
    Command("app.redraw", "Redraw the screen", "ctrl+l"),
    Command("app.suspend", "Suspend to the shell; fg returns", "ctrl+z",
            help="Packets that arrive meanwhile are in the next window that ends.", local=True),
    Command("app.theme", "Light or dark", "t",
            parameters=(Parameter("theme", ParameterKind.THEME, check=values.theme),),
            help="dark, light, or the name of a file in the folder themes beside config.toml."),
    Command("app.set", "Change a setting; alone: list them",
            parameters=(Parameter("option", ParameterKind.CHOICE, values.ui_options()),
                        Parameter("value")),
            help="The options of [ui], until the console ends.", alias="set"),
    Command("app.bind", "Bind a key to a command",
            parameters=(Parameter("key", needed=True), _LINE),
            help="Until the console ends: on the command's screen, or everywhere. Without a command"
            " the key does nothing.", alias="bind"),
    Command("app.run", "Run a program with the row's fields", local=True, alias=own.MARK,
            parameters=(Parameter("program", ParameterKind.PROGRAM, rest=True, needed=True),),
            help="!ss -tinp dst {destination}, also on a key of [keys]. With your rights, without a"
            f" shell, for a minute at most. Fields: {', '.join(own.FIELDS)}."),
    Command("app.reload", "Read the configuration file again",
            help="Keys, filters, tapes, columns, theme, glyphs and time. If the file has a mistake,"
            " nothing changes.", alias="reload"),
    Command("layout.save", "Save this layout", parameters=(_LAYOUT,),
            help="The screen in front, the theme, acknowledged and muted events, and for each"
            " screen its filter, order, columns and open panes. The default name is the last"
            " layout's, or default."),
    Command("layout.load", "Load a layout", parameters=(_LAYOUT,),
            help="--layout NAME, or layout in [ui], begins with one."),
    Command("macro.record", "Record a tape; again: stop", "Q",
            parameters=(Parameter("register"),),
            help="Into the register of a letter, or q. Keys of commands are recorded as commands,"
            " others as keys."),
    Command("macro.play", "Play a tape", "at", parameters=(Parameter("tape", ParameterKind.TAPE),),
            asks=True, help="A register's letter, the name of a tape, or its file. esc stops it."),
    Command("macro.stop", "Stop the tape"),
    Command("app.quit", "Quit", "q,ctrl+c", footer="Quit", local=True, alias="q"),
)  # fmt: skip
_TABLES = (
    Command("table.down", "Next row", "down,j", parameters=(_COUNT,)),
    Command("table.up", "Previous row", "up,k", parameters=(_COUNT,)),
    Command("table.page_down", "A page down", "pagedown,ctrl+f", parameters=(_COUNT,)),
    Command("table.page_up", "A page up", "pageup,ctrl+b", parameters=(_COUNT,)),
    Command("table.half_down", "Half a page down", "ctrl+d", parameters=(_COUNT,)),
    Command("table.half_up", "Half a page up", "ctrl+u", parameters=(_COUNT,)),
    Command(
        "table.first",
        "Top, and stay there",
        "g",
        parameters=(_ROW,),
        help="With a number, such as '10g: that row.",
    ),
    Command("table.last", "Last row", "G,end", parameters=(_ROW,)),
    Command("table.top", "Top, and stay there", "home"),
    Command("table.select", "Choose the row", "enter"),
    Command("table.left", "Scroll the columns to the left", "less_than_sign", parameters=(_COUNT,)),
    Command(
        "table.right",
        "Scroll the columns to the right",
        "greater_than_sign",
        parameters=(_COUNT,),
        help="A header tells how many columns do not fit, such as +2. The first ones stay.",
    ),
    Command("pane.next", "Next pane", "tab"),
    Command("pane.previous", "Previous pane", "shift+tab"),
)
_VIEW = (
    Command("view.columns", "Choose the table's columns", "vertical_line",
            parameters=(Parameter("columns", rest=True, check=values.columns),),
            help="Column names from the left; or usual, for the default columns."),
    Command("view.copy", "Copy the row", "c",
            parameters=(Parameter("what"),),
            help="row, table, or a column's name for one value of the row. The terminal puts it"
            " into its clipboard (OSC 52; in tmux: set -g set-clipboard on)."),
    Command("view.export", "Write the table to a file", "E", asks=True,
            parameters=(replace(_FILE, check=lambda text, _: target(text)), _OVERWRITE),
            help="All filtered and sorted rows, with the chosen columns:"
            f" .{', .'.join(VALUES)} have values, .txt the shown text. .svg and .png are a picture"
            " of the screen. Replaces an existing file only with overwrite, or by enter again."),
    Command("view.screenshot", "Write a picture of the screen",
            parameters=(replace(_FILE, check=lambda text, _: target(text, DRAWN)), _OVERWRITE),
            help=f"A .svg or .png; the default name is {PICTURE_NAME}, with the time of day."
            " .png needs the package resvg-py (>=0.5, <0.6).",
            alias="screenshot"),
    Command("work.cancel", "Cancel running work"),
)  # fmt: skip
_TIME = (
    Command("time.back", "A window back", "left_square_bracket", footer="Back",
            parameters=(_WINDOWS,),
            help="The screens stay at that window, while counting goes on."),
    Command("time.forward", "A window forward", "right_square_bracket", footer="On",
            parameters=(_WINDOWS,)),
    Command("time.back_minute", "A minute back", "left_curly_bracket", footer="-1 min"),
    Command("time.forward_minute", "A minute forward", "right_curly_bracket", footer="+1 min"),
    Command("time.event_back", "Back to the event before", "left_parenthesis"),
    Command("time.event_forward", "On to the next event", "right_parenthesis"),
    Command("time.ask", "Type a moment to go to", "b", asks=True),
    Command("time.go", "Go to a moment",
            parameters=(Parameter("moment", ParameterKind.MOMENT, needed=True),),
            help="A time of day as clocks show it, 12:30:05, or how long ago, 30s or 1h30m."),
    Command("time.live", "Back to the present"),
    Command("time.mark", "Compare with this moment", "M",
            help="Flows and hops show their changes since then; again ends the comparison."),
    Command("time.zoom_out", "Charts: show more history", "minus"),
    Command("time.zoom_in", "Charts: show less history", "equals_sign,plus"),
)  # fmt: skip
_OVERVIEW = (
    Command("overview.open", "Open the row on its screen", "", "overview", "Open",
            by_row=True),
    Command("overview.leave", "Back to the present", "escape", "overview", leaves=True),
)  # fmt: skip
_FLOWS = (
    Command("flow.filter", "Filter what is shown", "slash", "flows", "Filter",
            _filter(values.flow_filter), asks=True),
    Command("flow.clear", "Close, or clear the filter", "escape", "flows", leaves=True),
    *_sorting("flow", "flows", "conversations", "flows", "hosts", "services", "networks", "owners"),
    Command("flow.open", "Open the group, or explain the flow", "", "flows", "Open",
            by_row=True),
    Command("flow.explain", "Explain the flow: who, why, where", "", "flows",
            help="One page that begins with one sentence: owner, limit, the hop at which packets"
            " wait, and packets that this host lost. Tracing of its path begins, unless changes are"
            " refused; T turns to the path."),
    Command("flow.view", "Next view: hosts, services, processes", "v",
            "flows", "View",
            (Parameter("view", ParameterKind.CHOICE, VIEWS),
             Parameter("by", rest=True, check=values.flow_grouping)),
            help="Conversations, hosts, services, networks, processes, units, containers, pods,"
            " users, interfaces or directions. hosts local has this host's ends; networks take"
            " lengths of prefixes: flow.view networks 16, or 24 48 for IPv4 and IPv6. v leaves out"
            " owners that no flow has."),
    Command("flow.group", "Group by process, unit, host, ...", "", "flows",
            parameters=(Parameter("by", ParameterKind.CHOICE, tuple(GROUP_NOUNS), needed=True),),
            help="The groups add up to exactly the sums of the flows. Flows without an owner have a"
            " row for each reason."),
    Command("flow.view_back", "Previous view", "V", "flows"),
    Command("flow.hosts", "Hosts that talk most", "h", "flows", anywhere=True),
    Command("flow.trace", "Trace the path of the fastest flow", "T", "flows", writes=True),
    Command("flow.packets", "Keep and show the packets of the flow", "w", "flows", writes=True,
            help="Its packets live, newest first. W writes them to a file."),
    Command("flow.detail", "Detail of the row", "d", "flows", "Detail"),
    Command("flow.names", "Names or addresses", "a", "flows"),
    Command("flow.top", "Back to the top, and stay there", "", "flows"),
    said(RemoteCalls.reconfigure, asks=True),
)  # fmt: skip
_PATHS = (
    said(RemoteCalls.trace, replace(_DESTINATION, check=values.destination), asks=True,
          run=remote.trace),
    said(RemoteCalls.untrace),
    Command("path.set", "Change an option of tracing", "o", "paths", "",
            (Parameter("option", ParameterKind.TRACING, rest=True, check=values.path_options),),
            writes=True, asks=True, remote=remote.set_path_options,
            help="guarded=all guards every probe, guarded=end only probes that may reach the"
            " destination; guard=discard, checksum or none is the way. Also rate, per, burst,"
            " order, timeout, max_hops, pass_answers, mtu. Running traces start again."),
    Command("path.filter", "Filter paths and hops", "slash", "paths", "",
            _filter(values.path_filter), asks=True,
            help="loss>1% filters both; a term of hops, such as hop<=5, filters only hops."),
    Command("path.next", "Next destination or flow", "n", "paths", "Next"),
    Command("path.previous", "Previous destination or flow", "p", "paths"),
    Command("path.fold", "List or fold flows of the same way", "f", "paths"),
    *_sorting("path", "paths", "hops", "destinations"),
    Command("path.detail", "Detail of the hop", "", "paths", "Detail", by_row=True),
    Command("path.leave", "Close the detail", "escape", "paths", leaves=True),
    Command("path.names", "Names or addresses", "a", "paths"),
)  # fmt: skip

_TRIGGERS = (
    Command("trigger.detail", "Detail", "", "triggers", "Detail", by_row=True),
    Command("trigger.toggle", "Activate or deactivate the policy", "o", "triggers", "On/off",
            (_POLICY,), writes=True, remote=remote.toggle_policy),
    said(RemoteCalls.set_policy, _NEW_POLICY, asks=True, run=remote.set_policies),
    Command("trigger.change", "Change the policy", "e", "triggers", "", (_POLICY,), writes=True,
            asks=True),
    said(RemoteCalls.remove_policy),
    *_sorting("trigger", "triggers", "policies", "applications", footer="Sort"),
    *_culprit("trigger", "triggers"),
    Command("trigger.next", "Application's next table", "n", "triggers"),
    Command("trigger.previous", "Application's previous table", "p", "triggers"),
    Command("trigger.leave", "Close the detail", "escape", "triggers", leaves=True),
)  # fmt: skip
_PROGRAMS = (
    *_sorting("program", "programs", "programs"),
    Command("program.edit", "Edit the source", "", "programs", "Edit", (_PROBE,), by_row=True),
    Command("program.host", "Programs of the next chosen host", "N", "programs", "",
            (Parameter("host"),), help="Of several hosts of a fleet; or of the named one."),
    Command("program.leave", "Back to the list", "escape", "programs", "List", leaves=True),
    Command("program.next_direction", "The probe's other direction", "f2", "programs"),
    Command("program.panel", "Next panel", "f3", "programs"),
    Command("program.next_error", "Next problem", "f4", "programs"),
    Command("program.compile", "Compile and verify", "f5", "programs", "Check"),
    Command("program.swap", "Swap in the edited source", "f8", "programs", "Swap", writes=True),
    said(RemoteCalls.roll_back),
    Command("program.save", "Write the source to a file", "ctrl+s", "programs", "",
            (_FILE, _OVERWRITE),
            help="Replaces an existing file only with overwrite, or by enter again, unless this"
            " source was saved to it before."),
    Command("program.external", "Open the source in $EDITOR", "ctrl+o", "programs", local=True),
    Command("program.revert", "Back to the running source", "ctrl+r", "programs"),
    Command("program.problems", "Problems of the source", "p", "programs"),
    Command("program.log", "Verifier's log; again: whole", "l", "programs"),
    Command("program.diff", "Difference to the running source", "d", "programs"),
    Command("program.report", "Maps that a swap keeps and loses", "r", "programs"),
    Command("program.maps", "Maps of the probe, live", "o", "programs", "Maps"),
    Command("program.pin", "Pin a map to the Overview, or unpin it", "P", "programs", "",
            (Parameter("map"),), help="The Overview then shows it live; a layout keeps it."),
    Command("program.metrics", "Metrics of the last window", "w", "programs"),
    Command("program.events", "Events of the probe", "v", "programs"),
    said(RemoteCalls.cost),
    said(RemoteCalls.add, _FILE, run=remote.add_probe),
    Command("probe.new", "Ready probes, and an empty one", "n", "programs", "New",
            (Parameter("name"),), writes=True,
            help="Adds a probe of the library by its name, or opens the menu. Its source opens."),
    said(RemoteCalls.remove),
    said(RemoteCalls.export),
)  # fmt: skip
_EVENTS = (
    Command("event.open", "List the group's events, or go there", "",
            "events", "Open", by_row=True),
    Command("event.go", "Go to the time of the event", "w", "events", "Go",
            help="Every screen shows that moment, until escape or time.live. Of a group: to its"
            " newest event."),
    Command("event.acknowledge", "Acknowledge the group, or take that back", "A", "events", "Ack",
            help="It is dimmed until it happens again."),
    Command("event.mute", "Mute the group, or take that back", "m", "events", "Mute",
            help="Muted groups are counted and not listed. Layouts keep both marks."),
    Command("event.muted", "List muted groups, or hide them", "H", "events"),
    Command("event.filter", "Filter events", "slash", "events", "Filter",
            _filter(values.event_filter), asks=True),
    *_culprit("event", "events"),
    Command("event.detail", "The whole text of the event", "d", "events", "Detail"),
    *_sorting("event", "events", "events", footer="Sort"),
    Command("event.leave", "Close, or back to the present", "escape", "events", leaves=True),
)  # fmt: skip
_HOST = (Parameter("host"),)
_HOSTS = (
    Command("host.only", "Show this host alone", "", "hosts", "Only", _HOST, by_row=True,
            help="The other screens are then as with console --connect."),
    Command("host.mark", "Choose the host, or leave it out", "m", "hosts", "Choose", _HOST,
            help="The other screens show the chosen hosts together, each row with its host."),
    Command("host.all", "Choose all listed hosts", "A", "hosts", "All",
            help="Those that pass the filter, 32 at most."),
    Command("host.choose", "Choose the hosts that pass a filter", "", "hosts", "",
            (Parameter("filter", ParameterKind.FILTER, rest=True, needed=True),),
            help="host.choose site:ams"),
    Command("host.filter", "Filter hosts", "slash", "hosts", "Filter",
            (Parameter("filter", ParameterKind.FILTER, rest=True),), asks=True,
            help="host:web state:lost rate>1G, and labels of the file: site:ams."),
    Command("host.programs", "Paths, policies, programs of this one", "p", "hosts", "", _HOST,
            help="Of several chosen hosts, the screens Paths, Triggers and Programs show one, and"
            " name it."),
    Command("host.probe", "Add a probe to the chosen hosts", "a", "hosts", "", (_FILE,),
            writes=True, asks=True,
            help="At once, each on its own interface, with a report for each host."),
    Command("host.policy", "Add a policy to the chosen hosts", "o", "hosts", "",
            (_NEW_POLICY,), writes=True, asks=True, help="At once, with a report for each host."),
    Command("host.report", "Report of the last change on hosts", "r", "hosts"),
    Command("host.distinct", "Distinct flows of the chosen hosts", "d", "hosts",
            help="Of the last window; a flow that several hosts see counts once. The monitors need"
            " the same seed and number of registers: others are left out, and named."),
    *_sorting("host", "hosts", "fleet"),
    Command("host.leave", "Clear the filter, or back to the present", "escape", "hosts",
            leaves=True),
)  # fmt: skip

REGISTRY: dict[str, Command] = {
    command.name: command
    for command in (
        *_EVERYWHERE, *_VIEW, *_TABLES, *_TIME, *_OVERVIEW, *_FLOWS, *_PATHS, *_TRIGGERS,
        *_PROGRAMS, *_EVENTS, *_HOSTS,
    )
}  # fmt: skip
REGISTRY |= {
    each.command.name: said(each)
    for each in OPERATIONS.values()
    if each.command and each.command.name not in REGISTRY
}

_ALIASES = {command.alias: command for command in REGISTRY.values() if command.alias}


def find(name: str) -> Command | None:
    """Return the command of a name or an alias; None for an unknown name."""
    return REGISTRY.get(name) or _ALIASES.get(name)


def add_screen(screen: ScreenInfo) -> None:
    """Add a screen that stands outside, and the command that turns to it."""
    register(screen)
    REGISTRY[f"view.{screen.name}"] = _view(screen)
