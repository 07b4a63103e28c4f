"""Sizes of files, functions and signatures of dpsql, and what breaks a rule: python -m tests.structure.source_figures.

Everything is counted on the syntax tree. The docstring of each function that counts says what it counts. ``limits.py``
says how large each may be, and why a limit is no target.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.documents.pages import ROOT
from tests.structure.limits import PUBLIC_CLASSES, SIZE_LIMITS

PACKAGE = "dpsql"
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "core", "manager"}
VAGUE_LAST_WORDS = {"after", "other", "outside", "looking"}
IRREGULAR_PARTICIPLES = {
    "drawn",
    "found",
    "given",
    "held",
    "kept",
    "known",
    "made",
    "read",
    "shown",
    "taken",
    "told",
    "written",
}
PARTICLES = {"down", "in", "off", "on", "out", "over", "up"}
LARGEST_SHOWN = 5

Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_sources(root: Path) -> dict[str, str]:
    """Source text of every module of the package, by dotted name."""
    sources = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        sources[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return sources


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed module, with its dotted name and its number of lines."""

    name: str
    tree: ast.Module
    lines: int


def parsed(sources: Mapping[str, str]) -> tuple[Module, ...]:
    """Modules of source texts by dotted name."""
    return tuple(Module(name, ast.parse(text), len(text.splitlines())) for name, text in sources.items())


@cache
def modules_of(root: Path) -> tuple[Module, ...]:
    """Return all modules of the package, parsed once for the process."""
    return parsed(module_sources(root))


def file_lines(modules: Sequence[Module]) -> dict[str, int]:
    """Return the lines of each file, empty lines and comments included."""
    return {module.name: module.lines for module in modules}


def function_lines(modules: Sequence[Module]) -> dict[str, int]:
    """Return the lines of each function, from ``def`` to the last one, docstring included."""
    return {
        f"{module.name}.{path}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules
        for path, node in _definitions(module.tree)
        if isinstance(node, Function)
    }


def parameters(modules: Sequence[Module]) -> dict[str, int]:
    """Return the parameters of each function, ``self`` and ``cls`` not counted, ``*`` and ``**`` as one each.

    Public signatures are left out: what ``dpsql.__all__`` names, with its methods, and those of ``PUBLIC_CLASSES``.
    """
    public = _exported(modules) | set(PUBLIC_CLASSES)
    counts = {}
    for module in modules:
        for path, node in _definitions(module.tree):
            if isinstance(node, Function) and path.split(".")[0] not in public:
                given = node.args
                several = [each for each in (given.vararg, given.kwarg) if each is not None]
                names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several)]
                counts[f"{module.name}.{path}"] = sum(name not in ("self", "cls") for name in names)
    return counts


SIZES: dict[str, Callable[[Sequence[Module]], dict[str, int]]] = {
    "lines of a file": file_lines,
    "lines of a function": function_lines,
    "parameters of a function": parameters,
}
"""By the names of ``limits.SIZE_LIMITS``."""


def too_large(modules: Sequence[Module], name: str) -> list[str]:
    """Return what is larger than its limit, a sentence each, the largest first."""
    found = sorted(SIZES[name](modules).items(), key=lambda item: -item[1])
    return [f"{place}: {size}" for place, size in found if size > SIZE_LIMITS[name]]


def undocumented(modules: Sequence[Module]) -> list[str]:
    """Return public modules, classes, functions and methods without a docstring.

    Public is what has no name with an underscore in front on the way to it. What stands inside a function is its own,
    and a signature under ``@overload`` has the docstring of the function.
    """
    found: list[tuple[str, ast.AST]] = [(module.name, module.tree) for module in modules]
    found += [(f"{module.name}.{path}", node) for module in modules for path, node in _public_nodes(module.tree)]
    return [name for name, node in found if not has_docstring(node)]


def vague_names(modules: Sequence[Module]) -> list[str]:
    """Return modules and folders whose name says nothing of what is in them."""
    return [module.name for module in modules if VAGUE_NAMES & set(module.name.split("."))]


def participle_names(modules: Sequence[Module]) -> list[str]:
    """Return modules named by a participle without its noun (``shown``, ``added_up``), or by a place (``after``)."""
    return [module.name for module in modules if _is_participle(module.name.rpartition(".")[2].split("_"))]


RULES: dict[str, Callable[[Sequence[Module]], list[str]]] = {
    "public names without a docstring": undocumented,
    "vague names of modules": vague_names,
    "participles as names of modules": participle_names,
}
"""Each names what breaks it."""


def has_docstring(node: ast.AST) -> bool:
    """True for a module, class or function that begins with a string."""
    return isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node) is not None


def _definitions(node: ast.AST, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """Classes and functions at any depth, with their dotted path inside the module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | Function):
            yield ".".join((*path, child.name)), child
            yield from _definitions(child, (*path, child.name))
        else:
            yield from _definitions(child, path)


def _public_nodes(node: ast.AST, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.ClassDef | Function]]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | Function):
            yield from _public_nodes(child, path)
        elif not (child.name.startswith("_") or "overload" in map(ast.unparse, child.decorator_list)):
            yield ".".join((*path, child.name)), child
            if isinstance(child, ast.ClassDef):
                yield from _public_nodes(child, (*path, child.name))


def _exported(modules: Sequence[Module]) -> set[str]:
    """Names in ``__all__`` of the package itself."""
    names: set[str] = set()
    for module in modules:
        for node in module.tree.body if module.name == PACKAGE else ():
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names.update(ast.literal_eval(node.value))
    return names


def _is_participle(words: Sequence[str]) -> bool:
    participles = [bool(re.search(r"[^e]ed$", word)) or word in IRREGULAR_PARTICIPLES for word in words]
    alone = all(each or word in PARTICLES for each, word in zip(participles, words, strict=True))
    return (alone and any(participles)) or words[-1] in VAGUE_LAST_WORDS


def main() -> None:
    """Print the largest files, functions and signatures beside their limits, and what breaks a rule."""
    parser = argparse.ArgumentParser(description="What stands out in the source of dpsql.")
    parser.parse_args()
    modules = modules_of(ROOT)
    lines = []
    for name, count in SIZES.items():
        largest = sorted(count(modules).items(), key=lambda item: -item[1])[:LARGEST_SHOWN]
        lines += [f"{name}, at most {SIZE_LIMITS[name]}; the largest:"]
        lines += [f"    {size:>4}  {place}" for place, size in largest]
    for name, offenders in RULES.items():
        found = offenders(modules)
        lines += [f"{name}: {len(found) or 'none'}", *(f"    {place}" for place in found)]
    print("\n".join(lines))  # noqa: T201 — the command's output


if __name__ == "__main__":
    main()
