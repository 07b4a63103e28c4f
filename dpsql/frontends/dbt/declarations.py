"""What ``meta.dp`` in a dbt project declares, as the statements that a curator would write.

``meta.dp`` is all that a project says of a table or column: a setting that it does not name is removed, and one that
would protect less than what is declared asks for ``replace: true`` there, as everywhere.

The graph is dbt's own (``graph`` in a macro): nodes and sources as dictionaries. Nothing here looks at a database.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dpsql.errors import PolicyError
from dpsql.session import TABLE_RULES, quote, require, split_name, text_literal

Node = Mapping[str, Any]

_TEXTS = ("unit", "privacy_unit_column", "version", "keys", "keys_from", "public_by_decision")
_SETTINGS = tuple(name for name in TABLE_RULES if name not in ("unit", "privacy_unit_column", "version"))
_DOMAIN = ("bounds", "keys", "keys_from", "ordered")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NOT_ARGUMENTS = ("units", "public", "link", "version")
_BETWEEN = ("view", "ephemeral")


def declarations(
    graph: Mapping[str, Any], depends_on: list[str], version_of: Callable[[str], str | None]
) -> Iterator[str]:
    """What the project declares of its units and of the tables that a model reads, in an order that can be carried out.

    Statements are made one by one as they are asked for, and one may rely on those before it. A view without
    ``meta.dp`` of its own is looked through, to what it reads; links and lists of keys bring their tables along.

    Args:
        graph: dbt's.
        depends_on: the nodes that the model reads, by their ids.
        version_of: the version that a table has now, by its name; None for one that is not declared.

    Raises:
        PolicyError: ``meta.dp`` is not what it should be, or contradicts itself.

    """
    nodes = {**graph["nodes"], **graph["sources"]}
    found: dict[str, Iterator[str]] = {}
    for unique_id in depends_on:
        _collect(unique_id, nodes, found, version_of, ())
    return itertools.chain(_units(nodes), *found.values())


def deferred(graph: Mapping[str, Any], is_elsewhere: Callable[[str, str], bool]) -> Mapping[str, Any]:
    """The graph with the tables that ``--defer`` has put in place of the project's own.

    Args:
        graph: dbt's.
        is_elsewhere: whether a node, by id and name of its own table, is read from the table of the other state.

    """
    nodes = {}
    for unique_id, node in graph["nodes"].items():
        other = (node.get("defer_relation") or {}).get("relation_name")
        moved = other and node["relation_name"] and is_elsewhere(unique_id, node["relation_name"])
        nodes[unique_id] = {**node, "relation_name": other} if moved else node
    return {**graph, "nodes": nodes}


def literal(value: object) -> str:
    """SQL for a value from YAML.

    >>> literal(["it's", 1, 0.5, True])
    "['it''s', 1, 0.5, True]"
    """
    match value:
        case None:
            return "NULL"
        case bool() | int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(literal(element) for element in value)}]"
        case dt.date():
            return literal(value.isoformat())
        case _:
            return text_literal(str(value))


def number(value: object) -> object:
    """Return the number of a text that YAML should have read as one, such as 1e-6; return other values unchanged.

    >>> number("1e-6"), number(["0.1", "a"]), number({"visits": "5e1"})
    (1e-06, [0.1, 'a'], {'visits': 50.0})
    """
    match value:
        case str() if _NUMBER.fullmatch(value):
            return int(value) if value.isdigit() else float(value)
        case list():
            return [number(element) for element in value]
        case Mapping():
            return {name: number(element) for name, element in value.items()}
        case _:
            return value


def _meta(holder: Node, where: str) -> Mapping[str, Any]:
    """``dp`` of what a node or a column has as meta, be it under config or not."""
    of_config = (holder.get("config") or {}).get("meta") or {}
    dp = of_config.get("dp", (holder.get("meta") or {}).get("dp"))
    if dp is None:
        return {}
    if not isinstance(dp, Mapping):
        raise PolicyError(f"meta.dp of {where} takes names and values, as in dp: {{unit: patient}}")
    return dp


def _units(nodes: Mapping[str, Node]) -> tuple[str, ...]:
    units: dict[str, str] = {}
    for unique_id, node in nodes.items():
        of_source = (node.get("source_meta") or {}).get("dp") or {}
        for dp in (of_source, _meta(node, unique_id)):
            for unit, budget in (dp.get("units") or {}).items():
                if not isinstance(budget, Mapping):
                    raise PolicyError(f"unit {unit!r} in {unique_id} takes epsilon_budget and delta_budget")
                call = f"CALL dp_unit({literal(unit)}{_named(budget)})"
                if units.setdefault(unit, call) != call:
                    raise PolicyError(f"unit {unit!r} has two budgets in this project; declare it once")
    return tuple(units.values())


def _collect(
    unique_id: str,
    nodes: Mapping[str, Node],
    found: dict[str, Iterator[str]],
    version_of: Callable[[str], str | None],
    above: tuple[str, ...],
) -> None:
    """Add the statements of a node after those that it needs; each is made when it is asked for."""
    node = nodes.get(unique_id)
    if node is None or unique_id in found:
        return
    if unique_id in above:
        raise PolicyError(f"{node['name']}: links and lists of keys lead back to where they came from")
    above = (*above, unique_id)
    dp = {name: value for name, value in _meta(node, unique_id).items() if name != "units"}
    columns = {
        name: declared
        for name, column in (node.get("columns") or {}).items()
        if (declared := _meta(column, f"{unique_id}.{name}"))
    }
    if not dp and not columns:
        if (node.get("config") or {}).get("materialized") in _BETWEEN:
            for parent in node["depends_on"]["nodes"]:
                _collect(parent, nodes, found, version_of, above)
        return
    name = node.get("relation_name")
    if not name:
        raise PolicyError(f"{node['name']} is ephemeral: declare meta.dp of what it reads")

    def place(written: object, wanted: str) -> str:
        """A column that is written as table.column, with the table as dbt writes it if it is one of the project."""
        if not isinstance(written, str) or len(split_name(written)) < 2:
            raise PolicyError(f"{node['name']}: {wanted} takes table.column, as in visits.visit_id")
        *table, column = split_name(written)
        other = _named_node(table, nodes)
        if other is None:
            return written
        _collect(other, nodes, found, version_of, above)
        return f"{nodes[other]['relation_name']}.{quote(column)}"

    call = _table_call(node, name, dp, place)
    domains = []
    for column, declared in columns.items():
        given = {key: place(value, key) if key == "keys_from" else value for key, value in declared.items()}
        domains.append(f"CALL dp_domain({literal(name)}, {literal(column)}{_named(given)}{_removed(_DOMAIN, given)})")
    found[unique_id] = _statements(name, call, _version(node, dp), domains, version_of)


def _statements(
    name: str, call: str | None, version: str | None, domains: Sequence[str], version_of: Callable[[str], str | None]
) -> Iterator[str]:
    """The statements of one table.

    Args:
        name: quoted, as dbt writes it.
        call: ``CALL dp_protect(…``, ``dp_link`` or ``dp_public`` without its end; None where another one declared it.
        version: the version that it has, None where the project does not name one.
        domains: ``CALL dp_domain(…)`` of its columns.
        version_of: the version that a table has when this is asked, None for one that is not declared.

    """
    current = version_of(name)
    is_declared = current is not None or call is None
    if call is not None:
        first = "" if is_declared or version is None else f", version := {literal(version)}"
        yield f"{call}{first})"
    if is_declared and version not in (None, current):
        yield f"CALL dp_new_version({literal(name)}, version := {literal(version)})"
    yield from domains


def _table_call(node: Node, name: str, dp: Mapping[str, Any], place: Callable[[object, str], str]) -> str | None:
    public, link = dp.get("public", False), dp.get("link")
    arguments = {key: value for key, value in dp.items() if key not in _NOT_ARGUMENTS}
    require(
        (isinstance(public, bool), f"{node['name']}: public takes true or false"),
        (
            not public or (link is None and set(arguments) <= {"public_by_decision", "readable", "replace"}),
            f"{node['name']}: a public table has no unit and no rules of one",
        ),
    )
    if public:
        return f"CALL dp_public({literal(name)}{_named(arguments)}{_removed(('readable',), arguments)}"
    if link is not None:
        if not isinstance(link, Mapping) or set(link) != {"columns", "parent"}:
            raise PolicyError(
                f"{node['name']}: link takes columns and parent, as in "
                "link: {columns: visit_id, parent: visits.visit_id}"
            )
        keys = link["parent"] if isinstance(link["parent"], list) else [link["parent"]]
        parents = [place(key, "parent of link") for key in keys]
        return (
            f"CALL dp_link({literal(name)}, {literal(link['columns'])}, parent := {literal(parents)}"
            f"{_named(arguments)}{_removed(_SETTINGS, arguments)}"
        )
    return f"CALL dp_protect({literal(name)}{_named(arguments)}{_removed(_SETTINGS, arguments)}" if arguments else None


def _version(node: Node, dp: Mapping[str, Any]) -> str | None:
    version = dp.get("version")
    if isinstance(version, float | bool):
        # YAML has made 2026.10 into 2026.1
        raise PolicyError(f"{node['name']}: write the version in quotes, as in version: '{version}'")
    return None if version is None else str(version)


def _named_node(table: list[str], nodes: Mapping[str, Node]) -> str | None:
    """The node of the project that a name means: a model or seed, or a source's table with or without its source."""
    found = [
        unique_id
        for unique_id, node in nodes.items()
        if node.get("relation_name") and [node.get("source_name"), node["name"]][-len(table) :] == table
    ]
    if len(found) > 1:
        raise PolicyError(f"{'.'.join(table)!r} is the name of several tables of this project; write source.table")
    return found[0] if found else None


def _named(arguments: Mapping[str, Any]) -> str:
    """Named arguments of a call, each after a comma."""
    for name in arguments:
        if not re.fullmatch(r"[A-Za-z_]+", str(name)):
            raise PolicyError(f"meta.dp has no argument {name!r}")
    return "".join(
        f", {name} := {literal(value if name in _TEXTS else number(value))}"
        for name, value in arguments.items()
        if value is not None
    )


def _removed(settings: tuple[str, ...], given: Mapping[str, Any]) -> str:
    """NULL for settings that ``meta.dp`` does not name: it is the whole declaration, and nothing else would stay."""
    return "".join(f", {name} := NULL" for name in settings if given.get(name) is None)
