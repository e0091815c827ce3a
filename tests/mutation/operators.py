"""Makes small changes to a module's syntax tree: the mutants that its tests should notice.

A mutant is one change: a comparison that is off by one, a sign, a constant, a condition the other
way round, a statement left out. Not changed are annotations, decorators, docstrings, texts, imports
and what is raised: these say things and decide nothing, or no test should hold them.
"""

import ast
import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd, ast.Pow: ast.Mult,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "abs": "int"}
# What is not changed, nor anything in it.
LEFT_ALONE = (
    ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.arguments,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: its number in the module, where it is, and the line before and after it.

    lines: the first and the last line of the statement (of its head, where it has a body).
    """

    module: str
    number: int
    function: str
    before: str
    after: str
    lines: tuple[int, int]
    occurrence: int = 0

    @property
    def name(self) -> str:
        """What the mutant is called; it outlives changes elsewhere in the module."""
        again = f" (#{self.occurrence})" if self.occurrence else ""
        return f"{self.module}:{self.function}: {self.before} -> {self.after}{again}"


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return all mutants of a module's source, in the order of its text.

    >>> [mutant.name for mutant in mutants_of("m", "def f(a):\\n    return a < 1")]
    ['m:f: return a < 1 -> return a <= 1', 'm:f: return a < 1 -> return a < 2']
    """
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for number, change in enumerate(_changes(ast.parse(source), "")):
        mutant = Mutant(module, number, change.function, change.before, change.after, change.lines)
        occurrence = seen.get(mutant.name, 0)
        seen[mutant.name] = occurrence + 1
        found.append(dataclasses.replace(mutant, occurrence=occurrence))
    return found


def mutated(source: str, number: int) -> ast.Module:
    """Return the syntax tree of a source with the change of that number.

    >>> print(ast.unparse(mutated("def f(a):\\n    return a < 1", 1)))
    def f(a):
        return a < 2
    """
    tree = ast.parse(source)
    for at, change in enumerate(_changes(tree, "")):
        if at == number:
            change.edit.apply()
            return ast.fix_missing_locations(tree)
    raise ValueError(f"there is no mutant {number}")


@dataclass(frozen=True, slots=True)
class _Edit:
    """A node's field, or an element of it, and what it is replaced by."""

    parent: ast.AST
    field: str
    index: int | None
    new: object

    def apply(self) -> object:
        """Make the change, and return what was there."""
        value = getattr(self.parent, self.field)
        if self.index is None:
            setattr(self.parent, self.field, self.new)
            return value
        former, value[self.index] = value[self.index], self.new
        return former

    def line(self, statement: ast.stmt) -> str:
        """Return the statement's first line as it is after the change."""
        former = self.apply()
        text = _first_line(statement)
        _Edit(self.parent, self.field, self.index, former).apply()
        return text


@dataclass(frozen=True, slots=True)
class _Change:
    edit: _Edit
    function: str
    before: str
    after: str
    lines: tuple[int, int]


def _changes(node: ast.AST, function: str) -> Iterator[_Change]:
    """Yield the changes of the statements below a node."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for index, each in enumerate(getattr(node, field, [])):
            if not isinstance(each, ast.stmt):
                yield from _changes(each, function)
                continue
            if isinstance(each, LEFT_ALONE) or _is_text(each):
                continue
            name = function
            if isinstance(each, ast.FunctionDef | ast.ClassDef):
                name = f"{function}.{each.name}".lstrip(".")
            else:
                yield from _changes_of_statement(each, node, field, index, function)
            yield from _changes(each, name)


def _changes_of_statement(
    statement: ast.stmt, parent: ast.AST, field: str, index: int, function: str
) -> Iterator[_Change]:
    before, lines = _first_line(statement), _lines(statement)
    for edit in _edits(statement):
        yield _Change(edit, function or "<module>", before, edit.line(statement), lines)
    for replacement in _instead(statement):
        edit = _Edit(parent, field, index, ast.copy_location(replacement, statement))
        after = ast.unparse(replacement)
        yield _Change(edit, function or "<module>", before, after, lines)


def _lines(statement: ast.stmt) -> tuple[int, int]:
    """Return the first and the last line of a statement, or of the head of one with a body."""
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return statement.lineno, max(statement.lineno, last)


def _first_line(statement: ast.stmt) -> str:
    return ast.unparse(statement).splitlines()[0]


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _instead(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield what a whole statement is replaced by."""
    match statement:
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield ast.Pass()


def _edits(node: ast.AST) -> Iterator[_Edit]:
    """Yield the edits of a statement's own expressions (not of the statements in it)."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not isinstance(child, (ast.stmt, *LEFT_ALONE)):
                for new in _replacements(child, node, field):
                    yield _Edit(node, field, index, new)
                if not isinstance(child, ast.excepthandler | ast.match_case):
                    yield from _edits(child)


def _replacements(node: ast.AST, parent: ast.AST, field: str) -> Iterator[ast.AST]:
    """Yield what an expression, or an operator, is replaced by."""
    match node:
        case ast.cmpop() if type(node) in COMPARISONS:
            yield COMPARISONS[type(node)]()
        case ast.operator() if type(node) in ARITHMETIC:
            yield ARITHMETIC[type(node)]()
        case ast.And():
            yield ast.Or()
        case ast.Or():
            yield ast.And()
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(2 * value + 1)
        case ast.Name(id=name) if name in CALLS and isinstance(parent, ast.Call):
            if field == "func":
                yield ast.Name(CALLS[name], ast.Load())
    is_condition = field == "test" and isinstance(parent, ast.If | ast.While | ast.IfExp)
    if isinstance(node, ast.expr) and (is_condition or field == "ifs"):
        yield ast.UnaryOp(ast.Not(), copy.deepcopy(node))
