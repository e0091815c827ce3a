"""Puts a mutant's code into functions that exist already.

Whoever has imported such a function, decorated it or put it into a table sees the change, and
nothing is imported again. What a module runs while it is imported cannot be changed so.
"""

import ast
import gc
from collections import defaultdict
from collections.abc import Collection, Iterator
from types import CodeType, FunctionType

# A function's place in a file; its lines stay where they are when a mutant is made.
Place = tuple[str, str, int]


def functions_of(files: Collection[str]) -> dict[Place, list[FunctionType]]:
    """Return the functions of this process that are defined in some files."""
    found: dict[Place, list[FunctionType]] = defaultdict(list)
    for each in gc.get_objects():
        # By type(): isinstance() asks proxies of objects that are gone.
        if type(each) is FunctionType and each.__code__.co_filename in files:
            found[_place(each.__code__)].append(each)
    return found


def changed_code(tree: ast.Module, mutated: ast.Module, path: str) -> CodeType | None:
    """Return the code of the function that differs; None where what imports run differs."""
    before = {_place(code): code for code in _outermost(compile(tree, path, "exec"))}
    after = _outermost(compile(mutated, path, "exec"))
    differ = [code for code in after if before.get(_place(code)) != code]
    return differ[0] if len(differ) == 1 else None


def swap(code: CodeType, functions: dict[Place, list[FunctionType]]) -> bool:
    """Give its functions a changed code; return False where none can take it."""
    found = functions.get(_place(code), [])
    # A statement that is left out can be the only one to use a variable of an outer function.
    if any(each.__code__.co_freevars != code.co_freevars for each in found):
        return False
    for each in found:
        each.__code__ = code
    return bool(found)


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _outermost(code: CodeType) -> Iterator[CodeType]:
    """Yield the codes of a module's functions and its classes' methods, not those inside these."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            # The body of a class has no optimized local variables; a function has.
            if each.co_flags & 1:
                yield each
            else:
                yield from _outermost(each)
