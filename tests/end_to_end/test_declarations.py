"""Declarations that are repeated, with less than before: what they do not name stays, what would protect less is named.

The calls are made from the list of arguments that the declarations have themselves, so that a new argument is among
them: until it has a value here, the test says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping

import duckdb
import pytest

import dpsql
from dpsql.engine import DuckDBEngine, Engine
from dpsql.errors import PolicyError
from dpsql.session import LazyState
from dpsql.session.declare import ARGUMENTS, declare
from dpsql.sql.statements import FunctionCall, read_statement
from dpsql.state import Policy

BUDGETS = (
    {"epsilon_budget": "3", "delta_budget": "1e-6"},
    {"rho_budget": "0.5", "delta_threshold": "1e-6", "delta_conversion": "1e-7"},
    {"epsilon_budget": "3", "delta_budget": "1e-6", "composition": "'zcdp'", "thresholds": "false"},
    {"rho_budget": "0.5", "delta_conversion": "1e-7", "composition": "'gaussian'", "thresholds": "false"},
)
RULES = {
    "max_groups_contributed": "4",
    "max_rows_per_group": "5",
    "max_rows_norm": "9.5",
    "max_rows_per_unit": "40",
    "default_delta": "1e-9",
    "rho_window": "[0.01, 1]",
    "min_privacy_units_per_group": "20",
    "rho_ceiling": "1",
    "version": "'first'",
    "separate_people": "true",
    "coverage": "false",
    "time_zone": "'Asia/Tokyo'",
}
BY_RHO, BY_EPSILON = {"default_rho": "0.1"}, {"default_epsilon": "0.5", "rho_window": "NULL"}
# each declaration: its names, and sets of arguments that hold every argument but replace
DECLARED: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    *(("dp_unit", "'nurse'", budget) for budget in BUDGETS),
    *(
        ("dp_protect", "'staff'", {"unit": "'person'", "privacy_unit_column": "'pid'"} | RULES | level)
        for level in (BY_RHO, BY_EPSILON)
    ),
    *(("dp_protect", "'staff'", {"privacy_unit_column": "'pid'", "separate_people": "true"} | one) for one in BUDGETS),
    *(("dp_link", "'meals', 'stay'", {"parent": "'stays.stay'"} | RULES | level) for level in (BY_RHO, BY_EPSILON)),
    ("dp_domain", "'visits', 'cost'", {"bounds": "[0, 500]", "keys": "[1, 2]"}),
    ("dp_domain", "'visits', 'city'", {"keys_from": "'cities.name'"}),
    ("dp_domain", "'visits', 'mood'", {"keys": "['low']", "ordered": "true"}),
    ("dp_domain", "'visits', 'cost'", {"bounds": "[0, 500]", "keys_from": "'prices.price'"}),
    ("dp_public", "'register'", {"version": "'a'", "public": "true", "public_by_decision": "'it is published'"}),
    ("dp_public", "'prices'", {"readable": "true"}),
    ("dp_analyst", "'ana'", {"rho_limit": "0.05", "budget_part": "0.3"}),
    ("dp_new_version", "'visits'", {"version": "'second'"}),
)
# other values: (less protection, none less or None), for arguments that have a direction
LOOSER = {
    "epsilon_budget": ("4", "2"),
    "delta_budget": ("1e-5", "1e-7"),
    "rho_budget": ("0.6", "0.4"),
    "delta_threshold": ("1e-5", "1e-7"),
    "delta_conversion": ("1e-6", "1e-8"),
    "privacy_unit_column": ("'ward'", None),
    "max_groups_contributed": ("NULL", "9"),
    "max_rows_per_group": ("NULL", "9"),
    "max_rows_norm": ("NULL", "2"),
    "max_rows_per_unit": ("NULL", "9"),
    "default_rho": ("0.2", "0.05"),
    "default_epsilon": ("1", "0.1"),
    "default_delta": ("1e-8", "1e-10"),
    "min_privacy_units_per_group": ("19", "21"),
    "rho_window": ("NULL", "[0.5, 1]"),
    "rho_ceiling": ("NULL", None),
    "bounds": ("NULL", "[0, 900]"),
    "rho_limit": ("0.06", "0.04"),
    "budget_part": ("0.4", "0.2"),
}
NO_DIRECTION = {
    "composition",
    "thresholds",
    "unit",
    "version",
    "parent",
    "keys",
    "keys_from",
    "ordered",
    "public",
    "public_by_decision",
    "readable",
    "separate_people",
    "replace",
    "coverage",
    "time_zone",
}
MAY_BE_NULL = {
    "max_groups_contributed",
    "max_rows_per_group",
    "max_rows_norm",
    "max_rows_per_unit",
    "default_rho",
    "default_epsilon",
    "default_delta",
    "keys",
    "min_privacy_units_per_group",
    "rho_window",
    "rho_ceiling",
    "bounds",
    "keys_from",
    "ordered",
    "rho_limit",
    "budget_part",
    "coverage",
    "readable",
    "time_zone",
}


class _Catalog(DuckDBEngine):
    """The database, whose catalog is looked at once: it does not change in a test."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        super().__init__(connection)
        for method in ("find", "is_base_table", "is_unique", "collation", "column_values", "tables_read"):
            setattr(self, method, functools.cache(getattr(super(), method)))
        known = functools.cache(super().resolve)
        self.resolve = lambda parts: known(tuple(parts))  # type: ignore[method-assign]


class Curator:
    """Says declarations on books of their own, without what a session has for queries."""

    def __init__(self, engine: Engine, books: LazyState) -> None:
        self._engine = engine
        self._access = books

    def sql(self, text: str) -> str:
        statement = read_statement(text)
        assert isinstance(statement, FunctionCall)
        return declare(statement, self._access, self._engine)

    def policy(self) -> Policy:
        return self._access.read().policy()

    def log(self) -> list[dict[str, object]]:
        with self._access.read()._database.read() as connection:
            return [json.loads(row[0]) for row in connection.execute("SELECT declaration FROM policy_log ORDER BY id")]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE visits (pid INTEGER, city VARCHAR, cost DOUBLE, mood ENUM ('low', 'high'));"
            "CREATE TABLE cities (name VARCHAR);"
            "CREATE TABLE prices (price DOUBLE);"
            "CREATE TABLE register (PID INTEGER, name VARCHAR);"
            "CREATE TABLE staff (pid INTEGER, ward INTEGER);"
            "CREATE TABLE stays (stay INTEGER PRIMARY KEY, pid INTEGER);"
            "CREATE TABLE meals (stay INTEGER, dish VARCHAR)"
        )
        yield _Catalog(connection)


@pytest.fixture
def curator(engine: Engine) -> Iterator[Curator]:
    with contextlib.closing(LazyState(None)) as books:
        curator = Curator(engine, books)
        for call in (
            "dp_unit('patient', epsilon_budget := 1, delta_budget := 1e-6)",
            "dp_unit('person', epsilon_budget := 1, delta_budget := 1e-6)",
            "dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'pid')",
            "dp_protect('stays', coverage := FALSE, unit := 'patient', privacy_unit_column := 'pid')",
            "dp_public('cities')",
            "dp_public('prices')",
        ):
            curator.sql(f"CALL {call}")
        yield curator


def call(name: str, names: str, arguments: Mapping[str, str]) -> str:
    return f"CALL {name}({', '.join([names, *(f'{key} := {value}' for key, value in arguments.items())])})"


def settings(policy: Policy) -> Policy:
    """Return the policy without versions and the number of the last change of a fact, which are no settings."""
    tables = tuple(dataclasses.replace(table, version="") for table in policy.tables)
    public = tuple(dataclasses.replace(table, version="") for table in policy.public)
    return dataclasses.replace(policy, tables=tables, public=public, versions=(), undone=0)


def test_every_argument_of_every_declaration_is_tried() -> None:
    for name, arguments in ARGUMENTS.items():
        given = {argument for declared, _, values in DECLARED if declared == name for argument in values}
        assert set(arguments) - {"replace"} == given
        assert set(arguments) <= set(LOOSER) | NO_DIRECTION
    assert not set(LOOSER) & NO_DIRECTION


@pytest.mark.parametrize(("name", "names", "arguments"), DECLARED)
def test_what_a_repeated_declaration_does_not_name_stays(
    curator: Curator, name: str, names: str, arguments: Mapping[str, str]
) -> None:
    curator.sql(call(name, names, arguments))
    before, logged = curator.policy(), curator.log()
    if name != "dp_new_version":
        curator.sql(call(name, names, arguments))
        assert (curator.policy(), curator.log()) == (before, logged)
    for left_out in (*arguments, *([None] if name != "dp_domain" else [])):
        fewer = {key: value for key, value in arguments.items() if left_out not in (key, None)}
        curator.sql(call(name, names, fewer if left_out else {}))
        assert settings(curator.policy()) == settings(before), left_out
        if name != "dp_new_version":
            assert (curator.policy(), curator.log()) == (before, logged), left_out


@pytest.mark.parametrize(("name", "names", "arguments"), DECLARED)
def test_what_would_protect_less_is_named_and_asks_for_replace(
    curator: Curator, name: str, names: str, arguments: Mapping[str, str]
) -> None:
    curator.sql(call(name, names, arguments))
    before = curator.policy()
    for argument, value in arguments.items():
        if argument not in LOOSER or value == "NULL":
            continue
        less, _ = LOOSER[argument]
        # a window ends at the ceiling: both go together
        together = {"rho_window": less} if argument == "rho_ceiling" and arguments.get("rho_window") != "NULL" else {}
        changed = call(name, names, {argument: less} | together)
        # without thresholds the whole delta is compared
        words = {
            "epsilon_budget": "rho_budget",
            "delta_budget": "delta_",
            "delta_conversion": "delta_(budget|conversion)",
        }
        named = words.get(argument, argument)
        with pytest.raises(PolicyError, match=f"less than what is declared: .*{named}.*replace := true"):
            curator.sql(changed)
        assert settings(curator.policy()) == settings(before), argument
        curator.sql(call(name, names, {argument: less, "replace": "true"} | together))
        assert curator.policy() != before, argument
        # back again is no less, or is said
        curator.sql(call(name, names, {**arguments, "replace": "true"}))
        assert settings(curator.policy()) == settings(before), argument


@pytest.mark.parametrize(("name", "names", "arguments"), DECLARED)
def test_what_protects_no_less_goes_through(
    curator: Curator, name: str, names: str, arguments: Mapping[str, str]
) -> None:
    curator.sql(call(name, names, arguments))
    for argument, value in arguments.items():
        _, more = LOOSER.get(argument, ("", None))
        if more is None or value == "NULL":
            continue
        before = curator.policy()
        curator.sql(call(name, names, {argument: more}))
        assert curator.policy() != before, argument


@pytest.mark.parametrize(("name", "names", "arguments"), DECLARED)
def test_null_removes_a_setting_or_is_refused(
    curator: Curator, name: str, names: str, arguments: Mapping[str, str]
) -> None:
    curator.sql(call(name, names, arguments))
    for argument in [one for one in arguments if one not in ("version", "separate_people", "public_by_decision")]:
        before = curator.policy()
        removed = {argument: "NULL"} | ({"replace": "true"} if "replace" in ARGUMENTS[name] else {})
        if argument not in MAY_BE_NULL:
            with pytest.raises(PolicyError, match="cannot be removed"):
                curator.sql(call(name, names, removed))
            assert curator.policy() == before
            continue
        curator.sql(call(name, names, removed))
        assert (curator.policy() == before) == (arguments[argument] == "NULL"), argument


def test_a_default_level_is_said_in_one_way_and_the_other_way_is_another_level(curator: Curator) -> None:
    curator.sql("CALL dp_protect('visits', coverage := FALSE, default_rho := 0.1)")
    with pytest.raises(PolicyError, match=r"default_rho from 0\.1 to default_epsilon"):
        curator.sql("CALL dp_protect('visits', coverage := FALSE, default_epsilon := 0.01)")
    curator.sql("CALL dp_protect('visits', coverage := FALSE, default_epsilon := 0.01, replace := true)")
    (visits,) = (table for table in curator.policy().tables if table.table == "main.visits")
    assert (visits.default_rho, visits.default_epsilon) == (None, 0.01)


def test_a_delta_that_nobody_named_is_a_hundredth_of_the_units(curator: Curator) -> None:
    with pytest.raises(PolicyError, match="default_delta from 5e-09 to 6e-09"):
        curator.sql("CALL dp_protect('visits', coverage := FALSE, default_delta := 6e-9)")
    curator.sql("CALL dp_protect('visits', coverage := FALSE, default_delta := 4e-9)")
    with pytest.raises(PolicyError, match="default_delta from 4e-09 to 5e-09"):
        curator.sql("CALL dp_protect('visits', coverage := FALSE, default_delta := NULL)")


def test_half_of_a_budget_keeps_the_other_half(curator: Curator) -> None:
    curator.sql("CALL dp_unit('a', epsilon_budget := 3, delta_budget := 1e-6)")
    curator.sql("CALL dp_unit(' A ', epsilon_budget := 2)")
    curator.sql("CALL dp_unit('b', epsilon_budget := 2, delta_budget := 1e-6)")
    curator.sql("CALL dp_unit('c', epsilon_budget := 2, delta_budget := 1e-5)")
    curator.sql("CALL dp_unit('c', delta_budget := 1e-6)")
    a, b, c = (curator.policy().unit(name) for name in "abc")
    assert a is not None
    assert b is not None
    assert c is not None
    assert dataclasses.replace(a, name="b") == b
    # epsilon is not stored: what comes back of rho is no more than what was said
    assert 0 <= b.rho_budget - c.rho_budget <= 2
    assert dataclasses.replace(c, name="b", rho_budget=b.rho_budget) == b


def test_a_default_delta_may_go_where_the_threshold_delta_has_no_hundredth() -> None:
    with dpsql.connect() as session:
        session.connection.execute("CREATE TABLE v (pid INTEGER)")
        session.sql("CALL dp_unit('p', rho_budget := 1, delta_threshold := 5e-29, delta_conversion := 1e-6)")
        session.sql(
            "CALL dp_protect('v', coverage := FALSE, unit := 'p', privacy_unit_column := 'pid', default_delta := 1e-9)"
        )
        session.sql("CALL dp_protect('v', coverage := FALSE, default_delta := NULL)")
        assert session._access.read().policy().tables[0].default_delta is None
