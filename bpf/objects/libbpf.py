"""libbpf by ctypes: opens an object, relocates it to this kernel, and loads it.

The object helper alone loads this module: it imports nothing of probedeck. libbpf 1.0 has these
signatures, and its API is stable.
"""

from __future__ import annotations

import ctypes as ct
import mmap
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

LIBRARY = "libbpf.so.1"
BTF_FILE = "/sys/kernel/btf/vmlinux"
OBJECT = "probe"
"""Name that libbpf puts before the names of the maps of global variables."""
LOG_BYTES = 1 << 24
KIND_STRUCT, KIND_FUNC, KIND_DATASEC = 4, 12, 15
KIND_WITH_MEMBERS = KIND_STRUCT, 5, KIND_DATASEC
"""Structs, unions, and sections of variables."""
WARNING = 0
_BEFORE_TYPES = b"""#ifndef __VMLINUX_H__
#define __VMLINUX_H__
#pragma clang attribute push (__attribute__((preserve_access_index)), apply_to = record)
"""
_BEHIND_TYPES = b"#pragma clang attribute pop\n#endif\n"
RDONLY_PROG = 1 << 7
"""BPF_F_RDONLY_PROG: the flag of maps of constants."""
FUNC_RECORD, LINE_RECORD = 8, 16

_P, _U32, _INT, _TEXT = ct.c_void_p, ct.c_uint32, ct.c_int, ct.c_char_p
_PRINT = ct.CFUNCTYPE(_INT, _INT, _TEXT, _P)


class OpenOptions(ct.Structure):
    """struct bpf_object_open_opts up to `btf_custom_path`."""

    _fields_ = [
        ("size", ct.c_size_t), ("object_name", _TEXT), ("relaxed_maps", ct.c_bool),
        ("pin_root_path", _TEXT), ("_reserved", _U32), ("kconfig", _TEXT),
        ("btf_custom_path", _TEXT),
    ]  # fmt: skip


class LoadOptions(ct.Structure):
    """struct bpf_prog_load_opts up to `line_info_rec_size`."""

    _fields_ = [
        ("size", ct.c_size_t), ("attempts", _INT), ("attach_type", _INT), ("btf_fd", _U32),
        ("flags", _U32), ("ifindex", _U32), ("version", _U32), ("attach_btf_id", _U32),
        ("attach_prog_fd", _U32), ("attach_btf_obj_fd", _U32), ("fd_array", _P),
        ("functions", _P), ("function_count", _U32), ("function_size", _U32),
        ("lines", _P), ("line_count", _U32), ("line_size", _U32),
    ]  # fmt: skip


_PREPARE = ct.CFUNCTYPE(_INT, _P, ct.POINTER(LoadOptions), ct.c_long)


class HandlerOptions(ct.Structure):
    """struct libbpf_prog_handler_opts."""

    _fields_ = [
        ("size", ct.c_size_t), ("cookie", ct.c_long), ("setup", _P), ("prepare", _PREPARE),
        ("attach", _P),
    ]  # fmt: skip


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "libbpf_set_print": (_P, _PRINT),
    "libbpf_register_prog_handler": (_INT, _TEXT, _INT, _INT, ct.POINTER(HandlerOptions)),
    "bpf_object__open_mem": (_P, _TEXT, ct.c_size_t, ct.POINTER(OpenOptions)),
    "bpf_object__load": (_INT, _P),
    "bpf_object__close": (None, _P),
    "bpf_object__btf": (_P, _P),
    "bpf_object__btf_fd": (_INT, _P),
    "bpf_object__next_program": (_P, _P, _P),
    "bpf_object__next_map": (_P, _P, _P),
    "bpf_program__name": (_TEXT, _P),
    "bpf_program__section_name": (_TEXT, _P),
    "bpf_program__type": (_INT, _P),
    "bpf_program__set_type": (_INT, _P, _INT),
    "bpf_program__set_expected_attach_type": (_INT, _P, _INT),
    "bpf_program__set_autoload": (_INT, _P, ct.c_bool),
    "bpf_program__set_flags": (_INT, _P, _U32),
    "bpf_program__set_log_buf": (_INT, _P, _P, ct.c_size_t),
    "bpf_program__fd": (_INT, _P),
    "bpf_program__insns": (_P, _P),
    "bpf_program__insn_cnt": (ct.c_size_t, _P),
    "bpf_map__name": (_TEXT, _P),
    "bpf_map__fd": (_INT, _P),
    "bpf_map__type": (_INT, _P),
    "bpf_map__key_size": (_U32, _P),
    "bpf_map__value_size": (_U32, _P),
    "bpf_map__max_entries": (_U32, _P),
    "bpf_map__map_flags": (_U32, _P),
    "bpf_map__map_extra": (ct.c_uint64, _P),
    "bpf_map__btf_key_type_id": (_U32, _P),
    "bpf_map__btf_value_type_id": (_U32, _P),
    "bpf_map__is_internal": (ct.c_bool, _P),
    "bpf_map__initial_value": (_P, _P, ct.POINTER(ct.c_size_t)),
    "bpf_map__set_pin_path": (_INT, _P, _TEXT),
    "btf__parse": (_P, _TEXT, _P),
    "btf__type_cnt": (_U32, _P),
    "btf__resolve_type": (_INT, _P, _U32),
    "btf__resolve_size": (ct.c_int64, _P, _U32),
    "btf__type_by_id": (ct.POINTER(_U32), _P, _U32),
    "btf__name_by_offset": (_TEXT, _P, _U32),
    "btf_dump__new": (_P, _P, _P, _P, _P),
    "btf_dump__dump_type": (_INT, _P, _U32),
    "btf_dump__free": (None, _P),
}
"""The type of the result, then the types of the arguments."""
_MAP_PARTS = {
    "type": "type", "key_size": "key_size", "value_size": "value_size",
    "max_entries": "max_entries", "flags": "map_flags", "extra": "map_extra",
    "key_type": "btf_key_type_id", "value_type": "btf_value_type_id",
}  # fmt: skip
"""The reply's description of a map: libbpf's function for each part."""


class Libbpf:
    """The library; `said` collects its warnings."""

    def __init__(self) -> None:
        """Raises OSError if the library is missing."""
        self.functions = ct.CDLL(LIBRARY, use_errno=True)
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(self.functions, name)
            function.restype, function.argtypes = result, arguments
        self._libc = ct.CDLL(None)
        self._libc.vsnprintf.argtypes = [_P, ct.c_size_t, _TEXT, _P]
        self._libc.fopen.restype = _P
        self._libc.fopen.argtypes = [_TEXT, _TEXT]
        self._libc.fclose.argtypes = [_P]
        self._libc.fputs.argtypes = [_TEXT, _P]
        self._kernel: int | None = None
        self.said: list[str] = []
        self._print = _PRINT(self._hear)
        self.functions.libbpf_set_print(self._print)

    def _hear(self, level: int, text: bytes, arguments: int) -> int:
        if level == WARNING:
            line = ct.create_string_buffer(1 << 12)
            self._libc.vsnprintf(line, len(line), text, arguments)
            self.said.append(line.value.decode(errors="replace").removeprefix("libbpf: ").strip())
        return 0

    def read_kernel_types(self) -> None:
        """Read the types of this kernel, once."""
        self._kernel = self._kernel or self.functions.btf__parse(BTF_FILE.encode(), None)

    def write_kernel_types(self, path: str, numbers: Sequence[int]) -> None:
        """Write these types of this kernel as C, or all types without `numbers`."""
        file = self._libc.fopen(path.encode(), b"w")
        self._libc.fputs(_BEFORE_TYPES, file)
        # libc's own function is the callback: half a million calls of Python take a second.
        print_to_file = ct.cast(self._libc.vfprintf, _P)
        dump = self.functions.btf_dump__new(self._kernel, print_to_file, file, None)
        for number in numbers or range(1, self.functions.btf__type_cnt(self._kernel)):
            self.functions.btf_dump__dump_type(dump, number)
        self.functions.btf_dump__free(dump)
        self._libc.fputs(_BEHIND_TYPES, file)
        self._libc.fclose(file)


class LoadedObject:
    """An object, from its bytes to programs in the kernel."""

    def __init__(self, library: Libbpf, data: bytes) -> None:
        """Open it, outside of the kernel. Raises OSError, and `said` has the reason."""
        self._library, self._functions, self._data = library, library.functions, data
        # The types of modules need CAP_SYS_ADMIN. If libbpf is given a path, it leaves them out.
        custom = BTF_FILE.encode() if os.path.exists(BTF_FILE) else None
        self._options = OpenOptions(ct.sizeof(OpenOptions), OBJECT.encode(), btf_custom_path=custom)
        self._info: dict[str, tuple[bytes, bytes]] = {}
        self._handle = self._opened()
        self.programs: dict[str, tuple[str, int]] = {
            self._text("program__name", each): (
                self._text("program__section_name", each),
                self._functions.bpf_program__type(each),
            )
            for each in self._each("program")
        }
        """Section and type of each program; type 0: libbpf does not know the section."""
        self._functions.bpf_object__close(self._handle)
        # libbpf shows the functions and lines of a program to the handler of its section only.
        self._prepare = _PREPARE(self._keep_info)
        self._handler = HandlerOptions(ct.sizeof(HandlerOptions), 0, None, self._prepare, None)
        for section in {section for section, _ in self.programs.values()}:
            self._functions.libbpf_register_prog_handler(
                section.encode(), 0, 0, ct.byref(self._handler)
            )
        self._handle = self._opened()
        self._btf = self._functions.bpf_object__btf(self._handle)

    def constants(self, values: Mapping[str, int]) -> Iterator[str]:
        """Give `const volatile` variables, and members of variables such as `limits.rate`, their
        values; yield the names that were found.

        Raises ValueError if a number does not fit its variable.
        """
        for handle in self._each("map"):
            is_constant = self._functions.bpf_map__map_flags(handle) & RDONLY_PROG
            section = self._functions.bpf_map__btf_value_type_id(handle)
            size = ct.c_size_t()
            data = self._functions.bpf_map__initial_value(handle, ct.byref(size))
            for name, value in values.items() if section and data else ():
                path = name.split(".")
                if not (is_constant or path[1:]) or not (place := self._place(section, path)):
                    continue
                yield name
                try:
                    number = value.to_bytes(place[1], "little", signed=value < 0)
                except OverflowError:
                    text = f"{value} does not fit {name}, of {place[1]} bytes"
                    raise ValueError(text) from None
                ct.memmove(data + place[0], number, place[1])

    def load(self, names: Container[str], prog_type: int, attach_type: int) -> int:
        """Load the programs `names` with all maps. Returns 0 or an errno; `said` has the reason."""
        functions = self._functions
        for handle in self._each("map"):
            functions.bpf_map__set_pin_path(handle, None)
        self._logs = {}
        for handle in self._each("program"):
            name = self._text("program__name", handle)
            functions.bpf_program__set_autoload(handle, name in names)
            if name in names:
                self._make_static(name)
                functions.bpf_program__set_type(handle, prog_type)
                functions.bpf_program__set_expected_attach_type(handle, attach_type)
                # Untouched memory costs nothing; a buffer of ctypes is written with zeros.
                log = (ct.c_char * LOG_BYTES).from_buffer(mmap.mmap(-1, LOG_BYTES))
                self._logs[name] = log
                functions.bpf_program__set_log_buf(handle, log, len(log))
        return -int(functions.bpf_object__load(self._handle))

    def loaded(self, names: Container[str]) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield each program of `names` with its descriptor, -1 if it was refused."""
        for handle in self._each("program"):
            name = self._text("program__name", handle)
            if name not in names:
                continue
            count = self._functions.bpf_program__insn_cnt(handle)
            code = ct.string_at(self._functions.bpf_program__insns(handle), count * 8)
            functions, lines = self._info.get(name, (b"", b""))
            log = self._logs[name].value.decode(errors="replace")
            fd = self._functions.bpf_program__fd(handle)
            yield {
                "name": name, "instructions": code.hex(), "functions": functions.hex(),
                "lines": lines.hex(), "log": log, "loaded": fd >= 0,
            }, fd  # fmt: skip

    def maps(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield each map with its descriptor, -1 before `load`."""
        values = dict(self._values())
        for handle in self._each("map"):
            declared: dict[str, Any] = {
                key: getattr(self._functions, f"bpf_map__{function}")(handle)
                for key, function in _MAP_PARTS.items()
            }
            internal = self._functions.bpf_map__is_internal(handle)
            name = self._text("map__name", handle)
            declared["name"] = name.removeprefix(OBJECT) if internal else name
            declared["internal"] = internal
            declared["values"] = values.get(name, declared["max_entries"])
            yield declared, self._functions.bpf_map__fd(handle)

    def btf_fd(self) -> int:
        """Return the descriptor of its types; negative without types."""
        return int(self._functions.bpf_object__btf_fd(self._handle))

    def _opened(self) -> Any:
        self._library.said.clear()
        handle = self._functions.bpf_object__open_mem(
            self._data, len(self._data), ct.byref(self._options)
        )
        if not handle:
            raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
        return handle

    def _each(self, what: str) -> Iterator[int]:
        following = getattr(self._functions, f"bpf_object__next_{what}")
        handle = None
        while handle := following(self._handle, handle):
            yield handle

    def _text(self, function: str, handle: int) -> str:
        return str(getattr(self._functions, f"bpf_{function}")(handle), "utf-8", "replace")

    def _keep_info(self, handle: int, options: Any, _cookie: int) -> int:
        given = options.contents
        functions = ct.string_at(given.functions or 0, given.function_count * given.function_size)
        lines = ct.string_at(given.lines or 0, given.line_count * given.line_size)
        if (given.function_size, given.line_size) == (FUNC_RECORD, LINE_RECORD):
            self._info[self._text("program__name", handle)] = functions, lines
        return 0

    def _type(self, number: int) -> Any:
        """Return the words of a type: name, kind and count, size or type, then the members."""
        return self._functions.btf__type_by_id(self._btf, number)

    def _name(self, words: Any, at: int = 0) -> str:
        return str(self._functions.btf__name_by_offset(self._btf, words[at]), "utf-8", "replace")

    def _members(self, number: int) -> Iterator[tuple[str, int, int]]:
        """Yield name, type and offset: of the members of a struct or union, without bit fields; of
        the variables of a section."""
        words = self._type(self._functions.btf__resolve_type(self._btf, number))
        kind = words[1] >> 24 & 31
        for at in range(3, 3 + 3 * (words[1] & 0xFFFF) if kind in KIND_WITH_MEMBERS else 3, 3):
            if kind == KIND_DATASEC:
                yield self._name(self._type(words[at])), words[at], words[at + 1]
            elif not (words[at + 2] % 8 or words[at + 2] >> 24):
                yield self._name(words, at), words[at + 1], words[at + 2] // 8

    def _place(self, number: int, path: Sequence[str]) -> tuple[int, int] | None:
        """Return offset and bytes of a member in a type; None without such a member of bytes."""
        if not path:
            return 0, self._functions.btf__resolve_size(self._btf, number)
        for name, type_, offset in self._members(number):
            found = name in ("", path[0]) and self._place(type_, path[1:] if name else path)
            if found:
                return offset + found[0], found[1]
        return None

    def _values(self) -> Iterator[tuple[str, int]]:
        """Yield each map that the object declares, and the number of values that it puts in."""
        for number in range(1, self._functions.btf__type_cnt(self._btf) if self._btf else 1):
            words = self._type(number)
            if words[1] >> 24 & 31 == KIND_DATASEC and self._name(words) == ".maps":
                for at in range(3, 3 + 3 * (words[1] & 0xFFFF), 3):
                    variable = self._type(words[at])
                    declared = self._type(variable[2])
                    if declared[1] >> 24 & 31 == KIND_STRUCT:
                        yield self._name(variable), (words[at + 2] - declared[2]) // 8

    def _make_static(self, name: str) -> None:
        """Let another function call this program, as a part of it that is verified with it.

        The verifier looks at a global function alone, and refuses one that takes a `void *`.
        """
        for number in range(1, self._functions.btf__type_cnt(self._btf) if self._btf else 1):
            words = self._type(number)
            if words[1] >> 24 & 31 == KIND_FUNC and self._name(words) == name:
                words[1] &= ~0xFFFF
