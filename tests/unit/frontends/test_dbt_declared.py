"""What meta.dp in a dbt project means, statement by statement; no dbt and no database takes part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dpsql.errors import PolicyError
from dpsql.frontends.dbt.declarations import declarations, deferred

Node = dict[str, Any]


def node(
    name: str, dp: object = None, *, materialized: str = "table", reads: tuple[str, ...] = (), **columns: object
) -> Node:
    return {
        "name": name,
        "relation_name": f'"clinic"."main"."{name}"',
        "meta": {} if dp is None else {"dp": dp},
        "config": {"materialized": materialized},
        "columns": {column: {"config": {"meta": {"dp": declared}}} for column, declared in columns.items()},
        "depends_on": {"nodes": list(reads)},
    }


def source(table: str, dp: object = None, of_source: object = None) -> Node:
    return {
        **node(table, dp),
        "source_name": "clinic",
        "source_meta": {"dp": of_source} if of_source else {},
    }


def statements(
    nodes: Mapping[str, Node],
    *reads: str,
    sources: Mapping[str, Node] | None = None,
    versions: Mapping[str, str] | None = None,
) -> list[str]:
    found = declarations({"nodes": nodes, "sources": sources or {}}, list(reads), (versions or {}).get)
    return [text.replace('"clinic"."main".', "") for text in found]


UNITS = {"units": {"patient": {"epsilon_budget": 3, "delta_budget": "1e-6"}}}
VISITS = {"unit": "patient", "privacy_unit_column": "patient_id", "max_groups_contributed": 4}
UNIT = "CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-06)"
OTHERS = (
    ", max_rows_norm := NULL, max_rows_per_unit := NULL"
    ", default_rho := NULL, default_epsilon := NULL, default_delta := NULL, min_privacy_units_per_group := NULL, "
    "rho_window := NULL, rho_ceiling := NULL, coverage := NULL, time_zone := NULL"
)
PROTECT = (
    "CALL dp_protect('\"visits\"', unit := 'patient', privacy_unit_column := 'patient_id', "
    f"max_groups_contributed := 4, max_rows_per_group := NULL{OTHERS}"
)


def test_units_come_first_then_the_table_then_its_columns() -> None:
    nodes = {"m.visits": node("visits", VISITS, cost={"bounds": [0, "5e2"]}, city={"keys": ["it's", "1e3"]})}
    sources = {"s.other": source("other", of_source=UNITS)}
    assert statements(nodes, "m.visits", sources=sources) == [
        UNIT,
        f"{PROTECT})",
        "CALL dp_domain('\"visits\"', 'cost', bounds := [0, 500.0], keys := NULL, keys_from := NULL, ordered := NULL)",
        "CALL dp_domain('\"visits\"', 'city', keys := ['it''s', '1e3'], "
        "bounds := NULL, keys_from := NULL, ordered := NULL)",
    ]


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        (None, [f"{PROTECT}, version := '2026-11')"]),
        ("2026-11", [f"{PROTECT})"]),
        ("2026-10", [f"{PROTECT})", "CALL dp_new_version('\"visits\"', version := '2026-11')"]),
    ],
)
def test_a_version_is_declared_where_its_name_is_new(current: str | None, expected: list[str]) -> None:
    nodes = {"m.visits": node("visits", {**VISITS, "version": "2026-11"})}
    versions = {} if current is None else {'"clinic"."main"."visits"': current}
    assert statements(nodes, "m.visits", versions=versions) == expected


def test_a_version_may_be_all_that_is_said() -> None:
    nodes = {"m.visits": node("visits", {"version": 7})}
    assert statements(nodes, "m.visits") == ["CALL dp_new_version('\"visits\"', version := '7')"]


def test_views_are_looked_through_and_tables_are_not() -> None:
    nodes = {
        "m.visits": node("visits", VISITS),
        "m.seen": node("seen", materialized="view", reads=("m.visits",)),
        "m.inlined": node("inlined", materialized="ephemeral", reads=("m.seen",)),
        "m.copy": node("copy", reads=("m.visits",)),
    }
    assert statements(nodes, "m.inlined") == [f"{PROTECT})"]
    assert statements(nodes, "m.copy") == []


def test_links_and_lists_of_keys_bring_their_tables_along() -> None:
    nodes = {
        "m.meals": node(
            "meals",
            {"link": {"columns": "visit_id", "parent": "visits.visit_id"}},
            dish={"keys_from": "clinic.dishes.name"},
        ),
        "m.visits": node("visits", VISITS),
    }
    sources = {"s.dishes": source("dishes", {"public": True, "version": "a"})}
    assert statements(nodes, "m.meals", sources=sources) == [
        f"{PROTECT})",
        "CALL dp_public('\"dishes\"', readable := NULL, version := 'a')",
        "CALL dp_link('\"meals\"', 'visit_id', parent := ['\"visits\".\"visit_id\"'], "
        f"max_groups_contributed := NULL, max_rows_per_group := NULL{OTHERS})",
        "CALL dp_domain('\"meals\"', 'dish', "
        'keys_from := \'"dishes"."name"\', bounds := NULL, keys := NULL, ordered := NULL)',
    ]


def test_what_is_meant_though_it_looks_wrong_is_said_in_the_same_words() -> None:
    meant = {"separate_people": True, "replace": True, "min_privacy_units_per_group": 3}
    others = OTHERS.replace(", min_privacy_units_per_group := NULL", "")
    nodes = {
        "m.visits": node("visits", {**VISITS, **meant}, cost={"bounds": None, "keys": ["a"], "replace": True}),
        "m.staff": node("staff", {"public": True, "public_by_decision": "1e3 names", "replace": True}),
        "m.cities": node("cities", {"public": True, "readable": True}),
    }
    assert statements(nodes, "m.visits", "m.staff", "m.cities") == [
        PROTECT.removesuffix(f", max_rows_per_group := NULL{OTHERS}")
        + f", separate_people := True, replace := True, min_privacy_units_per_group := 3, max_rows_per_group := NULL"
        f"{others})",
        "CALL dp_domain('\"visits\"', 'cost', keys := ['a'], "
        "replace := True, bounds := NULL, keys_from := NULL, ordered := NULL)",
        "CALL dp_public('\"staff\"', public_by_decision := '1e3 names', replace := True, readable := NULL)",
        "CALL dp_public('\"cities\"', readable := True)",
    ]


@pytest.mark.parametrize(
    ("dp", "complaint"),
    [
        ("patient", "takes names and values"),
        ({"version": 2026.1}, "in quotes"),
        ({"public": "yes"}, "true or false"),
        ({"public": True, "unit": "patient"}, "no unit"),
        ({"link": "visits.visit_id"}, "columns and parent"),
        ({"link": {"columns": "a", "parent": "b"}}, "table.column"),
        ({"link": {"columns": "a", "parent": "visits.a"}}, "lead back"),
        ({"units": {"patient": 3}}, "epsilon_budget"),
        ({"a' := 1": 2}, "no argument"),
    ],
)
def test_what_makes_no_sense_is_refused(dp: object, complaint: str) -> None:
    with pytest.raises(PolicyError, match=complaint):
        statements({"m.visits": node("visits", dp)}, "m.visits")


def test_two_budgets_of_one_unit_are_refused() -> None:
    nodes = {
        "m.one": node("one", {"units": {"patient": {"epsilon_budget": 3, "delta_budget": 1e-6}}}),
        "m.two": node("two", {"units": {"patient": {"epsilon_budget": 4, "delta_budget": 1e-6}}}),
    }
    with pytest.raises(PolicyError, match="two budgets"):
        statements(nodes, "m.one")


def test_a_name_of_several_tables_is_refused() -> None:
    nodes = {
        "m.visits": node("visits", VISITS),
        "m.meals": node("meals", {"link": {"columns": "visit_id", "parent": "visits.visit_id"}}),
    }
    with pytest.raises(PolicyError, match=r"source\.table"):
        statements(nodes, "m.meals", sources={"s.visits": source("visits")})


def test_an_ephemeral_model_cannot_be_protected() -> None:
    nodes = {"m.visits": {**node("visits", VISITS, materialized="ephemeral"), "relation_name": None}}
    with pytest.raises(PolicyError, match="ephemeral"):
        statements(nodes, "m.visits")


def test_deferred_tables_are_declared_where_they_are_read() -> None:
    other = {"relation_name": '"clinic"."prod"."visits"'}
    nodes = {"m.visits": node("visits", VISITS) | {"defer_relation": other}, "m.cities": node("cities", VISITS)}
    graph = {"nodes": nodes, "sources": {}}
    for elsewhere, schema in ((True, "prod"), (False, "main")):
        moved = deferred(graph, lambda *_, elsewhere=elsewhere: elsewhere)
        found = declarations(moved, ["m.visits", "m.cities"], lambda _: None)
        assert [text.split("'")[1] for text in found] == [f'"clinic"."{schema}"."visits"', '"clinic"."main"."cities"']
