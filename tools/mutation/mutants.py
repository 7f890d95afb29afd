"""All one-line mutants of a source file: typical small programming mistakes.

A mutant changes one place in one line. Places without behaviour are left out: annotations,
docstrings and other texts, `TYPE_CHECKING` blocks, `__all__`, logging below warnings, and plain
assignments to a local name (without which almost any function raises `NameError`).
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import io
import itertools
import tokenize
from collections.abc import Iterator

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
QUIET = {"debug", "info", "overload", "cast", "TypeVar", "ParamSpec", "NewType", "getLogger"}
"""Calls whose behaviour no test can see; they and their arguments are not changed."""

SYMMETRIC = {
    *("add", "allclose", "array_equal", "compare_digest", "gcd", "is_named", "isclose"),
    *("isinstance", "logical_and", "logical_or", "max", "maximum", "min", "minimum", "multiply"),
}
"""Calls whose arguments may have any order, or that fail at once in a wrong order."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One changed line.

    Args:
        path: File, relative to the root of the checkout.
        line: Number of the changed line, from 1.
        before: The line without its indentation and its comment.
        after: The changed line without its indentation and its comment.
        scope: First and last line of the function that contains the line; of its class or file
            if the line runs at import.
        runs_at_import: Whether coverage cannot tell which tests use the line, because it runs once
            at import or is compiled.
    """

    path: str
    line: int
    before: str
    after: str
    scope: tuple[int, int] = dataclasses.field(compare=False)
    runs_at_import: bool = dataclasses.field(compare=False)

    @property
    def key(self) -> str:
        """A name that does not change when other lines of the file change."""
        return f"{self.path}: {self.before} => {self.after}"

    def apply(self, source: str) -> str:
        """Return `source` with the line changed."""
        lines = source.splitlines(keepends=True)
        text = lines[self.line - 1]
        indent = text[: len(text) - len(text.lstrip())]
        lines[self.line - 1] = indent + self.after + text[len(text.rstrip()) :]
        return "".join(lines)


def mutants_of(path: str, source: str) -> list[Mutant]:
    """List the mutants of a file in line order, without duplicates."""
    lines = _without_comments(source)
    tree = ast.parse(source)
    found: dict[Mutant, None] = {}
    for place in _Places(source).of(tree):
        text = lines[place.line - 1].encode()
        changed = (text[: place.start] + place.text.encode() + text[place.end :]).decode().strip()
        before = lines[place.line - 1].strip()
        if changed != before:
            mutant = Mutant(path, place.line, before, changed, place.scope, place.runs_at_import)
            found[mutant] = None
    return sorted(found, key=lambda mutant: mutant.line)


def _without_comments(source: str) -> list[str]:
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    return lines


@dataclasses.dataclass(frozen=True)
class _Place:
    """A range of bytes in one line, and its replacement."""

    line: int
    start: int
    end: int
    text: str
    scope: tuple[int, int]
    runs_at_import: bool


class _Places:
    """Walks a tree and yields the places that can be changed."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lines = [line.encode() for line in source.splitlines()]
        self._scope = (1, len(self._lines))
        self._runs_at_import = True

    def of(self, node: ast.AST) -> Iterator[_Place]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._function(node)
        elif isinstance(node, ast.ClassDef):
            yield from self._inside(node.body, node, self._runs_at_import)
        elif isinstance(node, ast.AnnAssign):
            for part in ast.walk(node.annotation):  # `Annotated[int, Meta(ge=1)]` has bounds
                if isinstance(part, ast.Call):
                    yield from self.of(part)
            if node.value is not None:
                yield from self._statement(node)
                yield from self.of(node.value)
        elif not _has_no_behaviour(node):
            yield from self._statement(node)
            yield from self._expression(node)
            for child in ast.iter_child_nodes(node):
                if not (_name_of(node) == "reshape" and _is_minus_one(child)):
                    yield from self.of(child)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[_Place]:
        names = {ast.unparse(decorator) for decorator in node.decorator_list}
        if any("overload" in name or "abstractmethod" in name for name in names):
            return
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            yield from self.of(default)
        compiled = any("jit" in name for name in names)
        yield from self._inside(node.body, node, compiled)

    def _inside(
        self, body: list[ast.stmt], node: ast.stmt, runs_at_import: bool
    ) -> Iterator[_Place]:
        outer = self._scope, self._runs_at_import
        self._scope = (node.lineno, node.end_lineno or node.lineno)
        self._runs_at_import = runs_at_import
        for statement in body:
            yield from self.of(statement)
        self._scope, self._runs_at_import = outer

    def _statement(self, node: ast.AST) -> Iterator[_Place]:
        """Remove a statement, or negate its condition."""
        match node:
            case (
                ast.Expr(value=ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom())
                | ast.AugAssign()
                | ast.Raise()
                | ast.Delete()
            ):
                yield from self._replace(node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
                yield from self._replace(node, "pass")
            case ast.AnnAssign(target=ast.Attribute() | ast.Subscript()):
                yield from self._replace(node, "pass")
            case ast.Break():
                yield from self._replace(node, "continue")
            case ast.Continue():
                yield from self._replace(node, "break")
                yield from self._replace(node, "pass")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield from self._replace(value, "None")
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if not isinstance(test, ast.Compare | ast.UnaryOp | ast.Constant):
                    yield from self._replace(test, f"not ({self._text(test)})")

    def _expression(self, node: ast.AST) -> Iterator[_Place]:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
                yield from self._between(left, right, *COMPARISONS[type(op)])
            case ast.Compare(left=left, ops=ops, comparators=rights):
                for one, op, other in zip([left, *rights], ops, rights, strict=False):
                    yield from self._between(one, other, *COMPARISONS[type(op)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                if not any(_is_text(side) or _is_type(side) for side in (left, right)):
                    yield from self._between(left, right, *OPERATORS[type(op)])
            case ast.AugAssign(target=target, op=op, value=value) if type(op) in OPERATORS:
                was, new = OPERATORS[type(op)]
                yield from self._between(target, value, f"{was}=", f"{new}=")
            case ast.BoolOp(op=op, values=values):
                was, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                for one, other in itertools.pairwise(values):
                    yield from self._between(one, other, was, new)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield from self._replace(node, self._text(operand))
            case ast.Constant(value=bool(value)):
                yield from self._replace(node, str(not value))
            case ast.Constant(value=int() | float() as value):
                yield from self._replace(node, repr(value + 1 if value in range(11) else value * 2))
            case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper)):
                for bound in (lower, upper):
                    if bound is not None and not isinstance(bound, ast.Constant):
                        yield from self._replace(bound, f"({self._text(bound)} + 1)")
            case ast.Call():
                yield from self._call(node)

    def _call(self, node: ast.Call) -> Iterator[_Place]:
        """Swap neighbouring arguments, widen a range, exchange `min` and `max`."""
        name = _name_of(node)
        for one, other in itertools.pairwise([] if name in SYMMETRIC else node.args):
            if one.lineno == other.end_lineno and not _is_starred(one) | _is_starred(other):
                swapped = self._text(other) + self._gap(one, other) + self._text(one)
                yield from self._stretch(one, other, swapped)
        if isinstance(node.func, ast.Name):
            if name == "range" and not isinstance(node.args[-1], ast.Constant):
                yield from self._replace(node.args[-1], f"{self._text(node.args[-1])} + 1")
            if name in TWINS:
                yield from self._replace(node.func, TWINS[name])

    def _text(self, node: ast.expr) -> str:
        if node.lineno == node.end_lineno:  # get_source_segment splits the whole file each time
            return self._lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
        return ast.get_source_segment(self._source, node) or ""

    def _gap(self, one: ast.expr, other: ast.expr) -> str:
        """Return the text between two nodes, or "" if they are not on one line."""
        if one.end_lineno != other.lineno:
            return ""
        return self._lines[other.lineno - 1][one.end_col_offset : other.col_offset].decode()

    def _replace(self, node: ast.stmt | ast.expr, text: str) -> Iterator[_Place]:
        yield from self._stretch(node, node, text)

    def _between(self, one: ast.expr, other: ast.expr, was: str, new: str) -> Iterator[_Place]:
        """Replace the operator between two operands on one line."""
        at = self._gap(one, other).find(was)
        if at >= 0:
            start = (one.end_col_offset or 0) + at
            yield self._place(other.lineno, start, start + len(was), new)

    def _stretch(
        self, first: ast.stmt | ast.expr, last: ast.stmt | ast.expr, text: str
    ) -> Iterator[_Place]:
        """Replace the text from one node to another, if it is on one line."""
        if first.lineno == last.end_lineno and last.end_col_offset is not None:
            yield self._place(first.lineno, first.col_offset, last.end_col_offset, text)

    def _place(self, line: int, start: int, end: int, text: str) -> _Place:
        return _Place(line, start, end, text, self._scope, self._runs_at_import)


def _has_no_behaviour(node: ast.AST) -> bool:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(body=body, orelse=[]):
            return all(map(_has_no_behaviour, body))
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr() | ast.Assert():
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("__"):
            return True
        case ast.keyword(arg="strict"):  # of `zip`: types and checks already ensure it
            return True
        case ast.Raise(exc=ast.Name(id=name) | ast.Call(func=ast.Name(id=name))):
            return name == "NotImplementedError"
        case ast.Expr(value=ast.Call() as call) | (ast.Call() as call):
            name = _name_of(call)
            level = _name_of(call.args[0]) if name == "log" and call.args else ""
            return name in QUIET or level in {"DEBUG", "INFO"}
    return False


def _name_of(node: ast.AST) -> str:
    """Return the name of a function or constant without its owner, or "" if it has none."""
    match node:
        case ast.Call(func=func):
            return _name_of(func)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_type(node: ast.expr) -> bool:
    """Whether a side of `int | None` is a type, judged by its name."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return _is_none(node) or name[:1].isupper() or hasattr(builtins, name)


def _is_starred(node: ast.expr) -> bool:
    return isinstance(node, ast.Starred)


def _is_minus_one(node: ast.AST) -> bool:
    """Whether it is -1; numpy's `reshape` accepts any negative number in its place."""
    return isinstance(node, ast.UnaryOp) and ast.unparse(node) == "-1"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
