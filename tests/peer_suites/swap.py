"""Replaces the class that a suite imports, and nothing else of what it tests.

The suites import the loader at their head, and once more in scripts that they keep in strings and
run in processes of their own; where they are about `DataLoader`, some tests name
`torch.utils.data.DataLoader` in full. All become the class that is asked for, under the name that
the tests use.
"""

import re

from .suites import SWAPPED, LoaderClass

# On a loaded machine a worker needs more than their minute to end. Both runs get the same.
JOIN_TIMEOUT_S = 400
_MODULES = "|".join(re.escape(each.module) for each in SWAPPED)
_IMPORT = re.compile(rf"^from ({_MODULES}) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
_IN_FULL = re.compile(r"\btorch\.utils\.data\.DataLoader\b(?=\()")


def swap_loader(text: str, loader: LoaderClass) -> str:
    """Return a suite's text in which `loader` stands for the loader that it imports."""
    text = _IMPORT.sub(lambda found: _swap_import(found[1], found[2], loader), text)
    if re.search(r"^from .* as DataLoader$", text, re.MULTILINE):
        text = _IN_FULL.sub("DataLoader", text)
    return re.sub(r"^JOIN_TIMEOUT = .*", f"JOIN_TIMEOUT = {JOIN_TIMEOUT_S}", text, flags=re.M)


def _swap_import(module: str, names: str, loader: LoaderClass) -> str:
    """Return an import statement as two: what stays, and the loader from where it is to come."""
    wanted = [name.strip() for name in names.strip("()").split(",") if name.strip()]
    swapped = {each.name for each in SWAPPED if each.module == module}
    lines = []
    kept = [name for name in wanted if name.split(" ")[0] not in swapped]
    if kept:
        lines.append(f"from {module} import {', '.join(kept)}")
    lines += [
        f"from {loader.module} import {loader.name} as {name.split(' ')[-1]}"
        for name in wanted
        if name not in kept
    ]
    return "\n".join(lines)
