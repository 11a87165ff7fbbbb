"""What the lines of a tape look like, as help and the manual say it."""

from __future__ import annotations

from app.commands.export_target import TEXT, VALUES

_SUFFIXES = " ".join(f".{suffix}" for suffix in (*VALUES, TEXT))
FORMS = (
    ("Action COMMAND [VALUE]", "Do a command, such as Action flow.sort bytes; Action may be left "
     "out."),
    ("Type[@TIME] TEXT", "Type a text, with so much time after each character. \"...\", '...' and "
     "`...` are taken as they are, with no escapes; of words without quotes one space is between "
     "two."),
    ("Enter[@TIME] [N]", "Press a key, N times. So do Tab Up Down Left Right Escape Space "
     "Backspace Delete Insert Home End PageUp PageDown F1 to F12."),
    ("Ctrl+P[@TIME] [N]", "Press it with others held: Ctrl, Alt, Shift; also Ctrl+Shift+Left."),
    ('Key[@TIME] "NAME" [N]', "Press any key by the name that key maps have for it: Key \"?\", Key "
     "f13."),
    ("Wait[@TIME]", "Wait until all that was asked for is done, as each step does."),
    ("Wait[+Screen|+Line][@TIME] /RE/", "Wait until the screen, or the line with the cursor, has "
     "it: a regular expression of Python, \\/ is a slash in it."),
    ("Wait[@TIME] STATE OPERATOR VALUE", "Wait until it holds; see probedeck tape states."),
    ("Expect STATE OPERATOR VALUE", "End with exit code 3 if it does not hold within a second: "
     '== != for all, < <= > >= for numbers, =~ /RE/ and !~ /RE/ for text. Values are "text", true, '
     "3, 10k, 10Mbit/s, 50ms, 5%."),
    ("Sleep TIME", "Do nothing for that time: 500ms, 2s, 1m, or a number of seconds."),
    ("Export VIEW FILE", f"Turn to a view and write its table: {_SUFFIXES}, or a picture "
     "of it: .svg. Directories are made, and what is there is overwritten."),
    ("Screenshot FILE", "Write what the screen shows: .svg or .txt."),
    ("Source FILE", "Do another tape's steps; FILE is beside this tape. At most 8 deep."),
    ("Require probedeck [OPERATOR VERSION]", "End at once with exit code 3 where it is another: "
     "== != < <= > >=. It may be called console. Require PROGRAM looks whether there is one."),
    ("Set WaitTimeout TIME", "How long steps wait from here on, where they don't say: 15s."),
    ("Set TypingSpeed TIME", "What is after each key from here on: 0."),
    ("Set Width N, Set Height N", "The screen that is not shown, 120 x 40; before the first step."),
    ("# TEXT", "A comment, also after a step. What the first line says is the tape's title."),
)  # fmt: skip
"""What a line is, and what it does; in the order in which they are told."""
EXIT = (
    "A tape that is wrong is not begun: exit code 2, every mistake as FILE:LINE:COLUMN. A step that"
    " fails, and what changes something without --allow-write, end it: FILE:LINE, the reason,"
    " exit code 3."
)
