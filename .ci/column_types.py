"""A plugin for mypy: it knows the columns of each table.

`FLOW = np.dtype([...])` at the top of a module gets a type with the names of its fields, and
`Rows[FLOW]` is the type of arrays of such rows. A subscript by a name that the dtype lacks is an
error. A subscript by an int, and a loop, give rows of the dtype; one by a slice or an array gives
such an array. The names are those of the dtype when its module is imported, so that comprehensions
and parts of other dtypes need no second evaluation here.

Columns are arrays of any dtype, and so is each result of their operators. numpy's stubs have up to
twenty overloads an operator, and mypy tries them all if a dtype is `Any`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from mypy.errorcodes import INDEX
from mypy.nodes import (
    ARG_POS,
    GDEF,
    MDEF,
    Argument,
    Context,
    ListExpr,
    MemberExpr,
    NameExpr,
    OpExpr,
    StarExpr,
    StrExpr,
    SymbolTableNode,
    TypeInfo,
    Var,
)
from mypy.options import Options
from mypy.plugin import (
    AnalyzeTypeContext,
    ClassDefContext,
    DynamicClassDefContext,
    FunctionContext,
    MethodContext,
    MethodSigContext,
    Plugin,
)
from mypy.plugins.common import add_method_to_class
from mypy.semanal_shared import has_placeholder
from mypy.types import (
    AnyType,
    FunctionLike,
    Instance,
    Type,
    TypeOfAny,
    UnboundType,
    UnionType,
    get_proper_type,
)
from mypy.typevars import fill_typevars

NDARRAY = "numpy.ndarray"
ARRAYS = "bpf.arrays."
PRODUCT = ("app.", "bpf.", "probes.")
OPERATORS = (
    "add sub mul truediv floordiv mod pow and or xor lshift rshift "
    "radd rsub rmul rtruediv rfloordiv rmod rpow rand ror rxor rlshift rrshift "
    "eq ne lt le gt ge"
)
ANY = AnyType(TypeOfAny.special_form)


class ColumnTypes(Plugin):
    """Types of structured arrays: see above."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._rows: dict[Context, TypeInfo] = {}
        """Type of a row by the call that makes its dtype."""
        sys.path.insert(0, str(Path(__file__).parents[1]))

    def get_dynamic_class_hook(
        self, fullname: str
    ) -> Callable[[DynamicClassDefContext], None] | None:
        return self._declare if fullname == "numpy.dtype" else None

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        return self._dtype if fullname == "numpy.dtype" else None

    def get_type_analyze_hook(self, fullname: str) -> Callable[[AnalyzeTypeContext], Type] | None:
        return {ARRAYS + "Rows": _rows, ARRAYS + "Row": _row}.get(fullname)

    def get_method_signature_hook(
        self, fullname: str
    ) -> Callable[[MethodSigContext], FunctionLike] | None:
        owner, _, method = fullname.rpartition(".")
        subscripted = method in ("__getitem__", "__setitem__")
        return _subscript if subscripted and owner.endswith(("@row", NDARRAY)) else None

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        hooks = {NDARRAY + ".all": _along, NDARRAY + ".any": _along, NDARRAY + ".__iter__": _each}
        return hooks.get(fullname)

    def get_base_class_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        return _simplify if fullname == "numpy._ArrayOrScalarCommon" else None

    def _declare(self, ctx: DynamicClassDefContext) -> None:
        """Make the type of the rows of a dtype at the top of a module."""
        api, module = ctx.api, ctx.api.cur_mod_id
        if api.is_func_scope() or api.type is not None or not module.startswith(PRODUCT):
            return
        name = f"{ctx.name}@row"
        made = api.modules[module].names.get(name)
        if made is None:
            base = _base(ctx)
            if base is None:
                api.defer()
                return
            try:
                dtype = getattr(importlib.import_module(module), ctx.name)
            except Exception as error:
                api.fail(f"The columns of {ctx.name} are unknown: {error!r}", ctx.call)
                return
            info = api.basic_new_typeinfo(name, base, ctx.call.line)
            for field in dtype.names or ():
                var = Var(field, ANY)
                var.info = info
                var._fullname = f"{info.fullname}.{field}"
                info.names[field] = SymbolTableNode(MDEF, var)
            made = SymbolTableNode(GDEF, info)
            api.add_symbol_table_node(name, made)
        self._rows[ctx.call] = made.node

    def _dtype(self, ctx: FunctionContext) -> Type:
        """Return the type of a dtype that `_declare` knows."""
        info, made = self._rows.get(ctx.context), ctx.default_return_type
        return made.copy_modified(args=[Instance(info, [])]) if info else made


def _base(ctx: DynamicClassDefContext) -> Instance | None:
    """Return the type of the rows that a dtype extends by `*OTHER.descr`, or else numpy.void.

    None if it is not known yet.
    """
    fields = ctx.call.args[0]
    while isinstance(fields, OpExpr):
        fields = fields.left
    match fields:
        case ListExpr(items=[StarExpr(expr=MemberExpr(name="descr", expr=NameExpr() as of)), *_]):
            row = ctx.api.lookup_fully_qualified_or_none(f"{of.fullname}@row")
            if row is not None:
                return Instance(row.node, [])
    return ctx.api.named_type_or_none("numpy.void")


def _row(ctx: AnalyzeTypeContext) -> Type:
    """Return the type of a row of a dtype: `Row[FLOW]`."""
    api = ctx.api.api
    match ctx.type.args:
        case [UnboundType(name=name)]:
            of = api.lookup_qualified(name, ctx.context)
            if of is None or of.node is None:
                return ANY
            row = api.lookup_fully_qualified_or_none(f"{of.node.fullname}@row")
            if row is not None and isinstance(row.node, TypeInfo):
                return Instance(row.node, [])
            if not api.final_iteration:
                api.defer()
                return ANY
    ctx.api.fail(f"{ctx.type} needs a dtype of the top of a module", ctx.context)
    return ANY


def _rows(ctx: AnalyzeTypeContext) -> Type:
    """Return the type of an array of rows of a dtype: `Rows[FLOW]`."""
    return _array(ctx.api.api.named_type, _row(ctx))


def _array(named: Callable[[str, list[Type]], Instance], scalar: Type) -> Instance:
    """Return the type of arrays of any shape."""
    shape = named("builtins.tuple", [ANY])
    return named(NDARRAY, [shape, named("numpy.dtype", [scalar])])


def _row_type(type_: Type) -> Instance | None:
    """Return the known type of the rows of an array, or of a row; None for others."""
    match get_proper_type(type_):
        case Instance(type=TypeInfo(fullname="numpy.ndarray"), args=[_, dtype]):
            return _row_type(dtype)
        case Instance(type=TypeInfo(fullname="numpy.dtype"), args=[scalar]):
            return _row_type(scalar)
        case Instance(type=TypeInfo(name=name)) as row if name.endswith("@row"):
            return row
    return None


def _subscript(ctx: MethodSigContext) -> FunctionLike:
    """Check the name of a column. A column is an array of any dtype."""
    sig, key, row = ctx.default_signature, ctx.args[0][0], _row_type(ctx.type)
    names = key.items if isinstance(key, ListExpr) else [key]
    for name in names if row else ():
        if isinstance(name, StrExpr) and row.type.get(name.value) is None:
            table = row.type.name.partition("@")[0]
            ctx.api.fail(f'{table} has no column "{name.value}"', name, code=INDEX)
    if isinstance(key, StrExpr) and len(ctx.args) == 1 and ctx.type.type.fullname == NDARRAY:
        column = _array(ctx.api.named_generic_type, ANY)
        return sig.copy_modified(arg_types=[ANY], ret_type=column)
    if row is None or len(ctx.args) != 1 or ctx.type.type.fullname != NDARRAY:
        return sig
    match get_proper_type(ctx.api.get_expression_type(ctx.args[0][0])):
        case Instance(type=TypeInfo(fullname="builtins.int")):
            return sig.copy_modified(arg_types=[ANY], ret_type=row)
        case Instance(type=TypeInfo(fullname="numpy.ndarray" | "builtins.slice")):
            return sig.copy_modified(arg_types=[ANY], ret_type=ctx.type)
    return sig


def _along(ctx: MethodContext) -> Type:
    """Return the type of `any` and `all` along an axis: numpy's stub does not exclude a scalar."""
    match get_proper_type(ctx.default_return_type):
        case UnionType():
            return _array(ctx.api.named_generic_type, ANY)
    return ctx.default_return_type


def _each(ctx: MethodContext) -> Type:
    """Return the type of the rows that a loop over an array gives."""
    row = _row_type(ctx.type)
    return ctx.api.named_generic_type("typing.Iterator", [row]) if row else ctx.default_return_type


def _simplify(ctx: ClassDefContext) -> None:
    """Give each operator of arrays one signature in place of overloads."""
    names = ctx.cls.info.names
    if ctx.cls.fullname != NDARRAY or names["__add__"].plugin_generated:
        return
    if has_placeholder(fill_typevars(ctx.cls.info)):
        ctx.api.defer()
        return
    result = _array(ctx.api.named_type, ANY)
    for name in OPERATORS.split():
        other = Argument(Var("other", ANY), ANY, None, ARG_POS)
        add_method_to_class(ctx.api, ctx.cls, f"__{name}__", [other], result)


def plugin(version: str) -> type[Plugin]:
    """Return the plugin for mypy."""
    return ColumnTypes
