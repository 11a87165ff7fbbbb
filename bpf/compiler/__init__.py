"""Compiling and verifying eBPF C outside the console, in a warm helper process."""

from bpf.compiler.client import Compiler
from bpf.compiler.compiled import Compiled, CompiledMap, CompiledProgram
from bpf.compiler.diagnostics import CompileError, Diagnostic

__all__ = [
    "CompileError",
    "Compiled",
    "CompiledMap",
    "CompiledProgram",
    "Compiler",
    "Diagnostic",
]
