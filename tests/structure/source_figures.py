"""Figures of the source of dpsql, and what stands out in them: python -m tests.structure.source_figures [--all].

Everything is counted on the syntax tree, so that layout and comments do not matter. Each rule stands in the docstring
of the function that counts; ``limits.py`` says how much of each is allowed. At commit 326a6d5 these rules count 16,294
statements and 603 tests for None.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.documents.pages import ROOT
from tests.structure.limits import (
    FIELDS,
    FILE_LINES,
    FUNCTION_LINES,
    NONE_TEST_ROOMS,
    PARAMETERS,
    PUBLIC_CLASSES,
    RECORDS_OF_ANY_WIDTH,
    SOURCE_LIMITS,
)

PACKAGE = "dpsql"
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "core", "manager"}
VAGUE_LAST_WORDS = {"after", "other", "outside", "looking"}
IRREGULAR_PARTICIPLES = {
    "drawn", "found", "given", "held", "kept", "known", "made", "read", "shown", "taken", "told", "written",
}  # fmt: skip
PARTICLES = {"down", "in", "off", "on", "out", "over", "up"}
OFFENDERS_SHOWN = 12

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


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, and where it comes from: a sentence each, the largest share first."""

    value: float
    offenders: tuple[str, ...]


def parsed(sources: Mapping[str, str]) -> tuple[Module, ...]:
    """Modules of source texts by dotted name."""
    return tuple(Module(name, ast.parse(text), len(text.splitlines())) for name, text in sources.items())


def statements(modules: Sequence[Module]) -> Figure:
    """Statements of the package: every ``ast.stmt`` but docstrings; strings below a field are no docstrings."""
    counts = {}
    for module in modules:
        nodes = list(ast.walk(module.tree))
        counts[module.name] = sum(isinstance(node, ast.stmt) for node in nodes) - sum(map(has_docstring, nodes))
    return _totalled(counts)


def none_tests(modules: Sequence[Module]) -> Figure:
    """Comparisons ``is None`` and ``is not None`` in the rooms that plan and run a query (``NONE_TEST_ROOMS``)."""
    counts = {}
    for module in modules:
        if module.name.startswith(tuple(f"{PACKAGE}.{room}" for room in NONE_TEST_ROOMS)):
            counts[module.name] = sum(
                isinstance(operator, ast.Is | ast.IsNot) and isinstance(right, ast.Constant) and right.value is None
                for node in ast.walk(module.tree)
                if isinstance(node, ast.Compare)
                for operator, right in zip(node.ops, node.comparators, strict=True)
            )
    return _totalled(counts)


def undocumented(modules: Sequence[Module]) -> Figure:
    """Public modules, classes, functions and methods without a docstring, in per cent of all of them.

    Public is what has no name with an underscore in front on the way to it. What stands inside a function is its own,
    and a signature under ``@overload`` has the docstring of the function.
    """
    found: list[tuple[str, ast.AST]] = [(module.name, module.tree) for module in modules]
    found += [(f"{module.name}.{path}", node) for module in modules for path, node in _public_nodes(module.tree)]
    missing = [name for name, node in found if not has_docstring(node)]
    return Figure(100 * len(missing) / max(1, len(found)), tuple(missing))


def long_files(modules: Sequence[Module]) -> Figure:
    """Files of more lines than ``FILE_LINES``, empty lines and comments included."""
    return _counted({module.name: module.lines for module in modules}, FILE_LINES, "lines")


def long_functions(modules: Sequence[Module]) -> Figure:
    """Functions of more lines than ``FUNCTION_LINES``, from ``def`` to the last one, docstring included."""
    lines = {
        f"{module.name}.{path}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules
        for path, node in _definitions(module.tree)
        if isinstance(node, Function)
    }
    return _counted(lines, FUNCTION_LINES, "lines")


def wide_records(modules: Sequence[Module]) -> Figure:
    """Classes with more annotated fields than ``FIELDS``; ``ClassVar`` is no field.

    Public results, settings and rows of tables (``RECORDS_OF_ANY_WIDTH``) are as wide as what they stand for.
    """
    widths = {
        f"{module.name}.{path}": sum(
            isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation) for field in node.body
        )
        for module in modules
        for path, node in _definitions(module.tree)
        if isinstance(node, ast.ClassDef) and f"{module.name}.{path}" not in RECORDS_OF_ANY_WIDTH
    }
    return _counted(widths, FIELDS, "fields")


def wide_signatures(modules: Sequence[Module]) -> Figure:
    """Functions with more parameters than ``PARAMETERS``, ``self`` and ``cls`` not counted, ``*`` and ``**`` as one.

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
    return _counted(counts, PARAMETERS, "parameters")


def vague_names(modules: Sequence[Module]) -> Figure:
    """Modules and folders whose name says nothing of what is in them."""
    return _named(module.name for module in modules if VAGUE_NAMES & set(module.name.split(".")))


def participle_names(modules: Sequence[Module]) -> Figure:
    """Modules named by a participle without its noun (``shown``, ``added_up``), or by where they stand (``after``)."""
    return _named(module.name for module in modules if _is_participle(module.name.rpartition(".")[2].split("_")))


FIGURES: dict[str, Callable[[Sequence[Module]], Figure]] = {
    "statements": statements,
    "tests for None": none_tests,
    "public names without a docstring, in %": undocumented,
    "long files": long_files,
    "long functions": long_functions,
    "wide records": wide_records,
    "wide signatures": wide_signatures,
    "vague names of modules": vague_names,
    "participles as names of modules": participle_names,
}


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


def _totalled(counts: Mapping[str, int]) -> Figure:
    largest = sorted(counts.items(), key=lambda item: -item[1])
    return Figure(sum(counts.values()), tuple(f"{name}: {count:,}" for name, count in largest if count))


def _counted(counts: Mapping[str, int], most: int, what: str) -> Figure:
    found = sorted(((name, count) for name, count in counts.items() if count > most), key=lambda item: -item[1])
    return Figure(len(found), tuple(f"{name}: {count} {what}" for name, count in found))


def _named(names: Iterator[str]) -> Figure:
    found = tuple(names)
    return Figure(len(found), found)


def main() -> None:
    """Print every figure beside its limit, and where it comes from."""
    parser = argparse.ArgumentParser(description="Figures of the source of dpsql, and what stands out in them.")
    parser.add_argument("--all", action="store_true", help=f"name every offender, not {OFFENDERS_SHOWN} of each kind")
    arguments = parser.parse_args()
    modules = parsed(module_sources(ROOT))
    lines = [f"{'':<40}{'now':>8}{'limit':>8}{'goal':>8}"]
    for name, count in FIGURES.items():
        figure, limit = count(modules), SOURCE_LIMITS[name]
        lines.append(f"{name:<40}{round(figure.value, 1):>8,}{limit.most:>8,}{limit.goal:>8,}")
        lines += [f"    {each}" for each in figure.offenders[: None if arguments.all else OFFENDERS_SHOWN]]
        left = len(figure.offenders) - OFFENDERS_SHOWN
        lines += [f"    and {left} more (--all)"] if left > 0 and not arguments.all else []
    print("\n".join(lines))  # noqa: T201 — the command's output


if __name__ == "__main__":
    main()
