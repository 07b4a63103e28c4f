"""What may be asked of can be looked up by each door; what nobody declared, or a type or a default holds, cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator

import duckdb
import pytest

import dpsql
from dpsql.assets import native_library
from dpsql.engine.listing import NOT_SHOWN
from dpsql.errors import ParseError, PolicyError, SchemaError, UnsupportedQueryError
from dpsql.session.tables import MOST_KEYS
from tests.end_to_end.prepared import with_own_rows, with_own_state
from tests.end_to_end.shell_story import PROGRAM
from tests.end_to_end.shell_terminal import needs_shell
from tests.json_rows import plain_rows
from tests.serving import door, in_background, request, token_of

CANARY = "CANARY"
CANARY_NUMBER = 918273645

TABLES = (
    f"CREATE TYPE ward AS ENUM ('north', 'it''s', '{CANARY}_ENUM', ')')",
    f"CREATE TABLE visits (patient VARCHAR, visit_id INTEGER PRIMARY KEY, city VARCHAR DEFAULT '{CANARY}_CITY', "
    'ward ward, place STRUCT(wing ward, floor INTEGER), odd STRUCT("ENUM(\'" ward), wards ward[], '
    "by_ward MAP(ward, ward[2]), "
    f"either UNION(n INTEGER, w ward), cost DECIMAL(9, 2) CHECK (cost <> {CANARY_NUMBER}), urgent BOOLEAN)",
    f"INSERT INTO visits (patient, visit_id, city, ward, cost) VALUES ('{CANARY}_UNIT', 1, '{CANARY}_KEY', 'north', 1)",
    "CREATE TABLE bills (visit_id INTEGER, amount DOUBLE)",
    f"CREATE TABLE cities AS SELECT '{CANARY}_PUBLIC' AS name, 'north'::ward AS ward",
    f"CREATE TABLE {CANARY}_table ({CANARY}_column INTEGER)",
    f"CREATE VIEW {CANARY}_view AS FROM {CANARY}_table",
    f"CREATE VIEW costs AS SELECT patient AS who, 2 * cost AS twice, city, ward FROM visits WHERE city <> '{CANARY}_W'",
    "CREATE VIEW paid AS SELECT patient, ward FROM visits WHERE cost > 0",
    "CREATE VIEW by_city AS SELECT city, count(*) AS n FROM visits GROUP BY city",
    "CREATE SCHEMA wing",
    'CREATE TABLE wing."long stays" (patient VARCHAR, visit_id INTEGER)',
)
POLICY = (
    "CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)",
    "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 4)",
    "CALL dp_protect('wing.long stays', unit := 'patient', privacy_unit_column := 'patient')",
    "CALL dp_protect('paid', unit := 'patient', privacy_unit_column := 'patient')",
    "CALL dp_link('bills', 'visit_id', parent := 'visits.visit_id')",
    "CALL dp_public('cities')",
    "CALL dp_domain('visits', 'cost', bounds := [0, 500])",
    "CALL dp_domain('visits', 'city', keys_from := 'cities.name')",
    "CALL dp_domain('visits', 'urgent', keys := [true, false])",
    "CALL dp_analyst('ana', rho_limit := 0.5)",
)
COLUMNS = ("table_name", "column_name", "column_type", "unit", "role", "bounds", "public_keys")
Row = tuple[str | None, ...]
UNREAD = "cannot be read by a query"
VISITS: list[Row] = [
    ("patient", "VARCHAR", "patient", "privacy unit column", None, None),
    ("visit_id", "INTEGER", "patient", "private", None, None),
    ("city", "VARCHAR", "patient", "key with public list", None, "from cities.name"),
    ("ward", "VARCHAR", "patient", "private", None, None),
    ("cost", "DECIMAL(9,2)", "patient", "private", "[0, 500]", None),
    ("urgent", "BOOLEAN", "patient", "key with public list", None, "TRUE, FALSE"),
    ("place", "STRUCT(wing VARCHAR, floor INTEGER)", "patient", UNREAD, None, None),
    ("odd", NOT_SHOWN, "patient", UNREAD, None, None),
    ("wards", "VARCHAR[]", "patient", UNREAD, None, None),
    ("by_ward", "MAP(VARCHAR, VARCHAR[2])", "patient", UNREAD, None, None),
    ("either", "UNION(n INTEGER, w VARCHAR)", "patient", UNREAD, None, None),
]
BILLS: list[Row] = [
    ("visit_id", "INTEGER", "patient", "link to visits.visit_id", None, None),
    ("amount", "DOUBLE", "patient", "private", None, None),
    ("patient", "VARCHAR", "patient", "privacy unit column", None, None),
]
CITIES: list[Row] = [("name", "VARCHAR", None, "public", None, None), ("ward", "VARCHAR", None, "public", None, None)]
PAID: list[Row] = [
    ("patient", "VARCHAR", "patient", "privacy unit column", None, None),
    ("ward", "VARCHAR", "patient", "private", None, None),
]
LONG_STAYS: list[Row] = [
    ("patient", "VARCHAR", "patient", "privacy unit column", None, None),
    ("visit_id", "INTEGER", "patient", "private", None, None),
]
TABLE_ROWS: dict[str, list[Row]] = {
    "bills": BILLS,
    "cities": CITIES,
    "paid": PAID,
    "visits": VISITS,
    'wing."long stays"': LONG_STAYS,
}
EVERYTHING = [(name, *row) for name, rows in TABLE_ROWS.items() for row in rows]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Session]:
    with dpsql.connect(tmp_path_factory.mktemp("clinic") / "clinic.duckdb") as session:
        for statement in TABLES:
            session.connection.execute(statement)
        for statement in POLICY:
            session.sql(statement)
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


def test_analysts_and_the_curator_look_up_what_may_be_asked_of(session: dpsql.Session) -> None:
    for reader in (session, session.as_analyst("ana")):
        shown = reader.sql("SHOW TABLES")
        assert shown.columns == ["name"]
        assert shown.fetchall() == [(name,) for name in TABLE_ROWS]
        assert reader.sql("FROM dp_tables()").fetchall() == EVERYTHING
        for statement in ("DESCRIBE visits", "desc main.VISITS", "SHOW visits", "DESCRIBE TABLE visits"):
            assert reader.sql(statement).fetchall() == VISITS
        for name, rows in TABLE_ROWS.items():
            assert reader.sql(f"DESCRIBE {name}").fetchall() == rows
        assert reader.sql("DESCRIBE costs").fetchall() == [
            ("who", "VARCHAR", "patient", "privacy unit column", None, None),
            ("twice", "DECIMAL(18,2)", "patient", "private", "[0, 1000]", None),
            ("city", "VARCHAR", "patient", "key with public list", None, "from cities.name"),
            ("ward", "VARCHAR", "patient", "private", None, None),
        ]
    assert CANARY not in repr(EVERYTHING)


def test_what_nobody_declared_is_answered_as_what_does_not_exist(session: dpsql.Session) -> None:
    analyst = session.as_analyst("ana")
    said = set()
    for name in ("nowhere", f"{CANARY}_table", f"{CANARY}_view"):
        for statement in (f"DESCRIBE {name}", f"SELECT count(*) FROM {name}"):
            with pytest.raises(SchemaError) as refused:
                analyst.sql(statement)
            said.add(str(refused.value).partition(": ")[2].replace(name, "…"))
    assert len(said) == 1


def test_tables_that_are_gone_are_shown_as_they_are_remembered(prepared: dpsql.Session) -> None:
    with with_own_rows(prepared, "CREATE TABLE nothing (n INTEGER)") as session:
        shown = session.as_analyst("ana").sql("FROM dp_tables()").fetchall()
        described = session.as_analyst("ana").sql("DESCRIBE bills").fetchall()
    assert described == BILLS
    remembered = [row for row in EVERYTHING if row[4] not in (UNREAD, "public")]
    # the public table that lists the cities is gone as well, and what is public is not remembered
    city = ("visits", "city", "VARCHAR", "patient", "private", None, None)
    assert shown == [city if row[:2] == city[:2] else row for row in remembered]


def test_a_public_table_that_can_be_read_is_marked(session: dpsql.Session) -> None:
    session.sql("CALL dp_public('cities', readable := true)")
    session.sql("CALL dp_domain('cities', 'name', keys := ['Ulm'])")
    session.connection.execute(
        "CREATE VIEW met AS SELECT patient, cities.ward AS place FROM visits JOIN cities ON city = name"
    )
    for reader in (session, session.as_analyst("ana")):
        assert reader.sql("DESCRIBE cities").fetchall() == [
            ("name", "VARCHAR", None, "key with public list, readable", None, "'Ulm'"),
            ("ward", "VARCHAR", None, "public, readable", None, None),
        ]
        assert reader.sql("DESCRIBE met").fetchall() == [
            ("patient", "VARCHAR", "patient", "privacy unit column", None, None),
            ("place", "VARCHAR", "patient", "public", None, None),
        ]


def test_a_long_list_of_public_keys_is_counted(session: dpsql.Session) -> None:
    keys = [f"'K{number}'" for number in range(MOST_KEYS + 1)]
    session.sql(f"CALL dp_domain('wing.long stays', 'patient', keys := [{', '.join(keys)}])")
    assert session.as_analyst("ana").sql('DESCRIBE wing."long stays"').fetchall()[0][-1] == "21 keys"


@pytest.mark.parametrize(
    ("statement", "place", "cure"),
    [
        ("SHOW ALL TABLES", 10, "FROM dp_tables()"),
        ("SHOW TABLES FROM main", 18, "SHOW TABLES"),
        ("DESCRIBE SELECT 1", 17, "FROM dp_describe("),
        ("DESCRIBE FORMATTED visits", 20, "DESCRIBE t"),
    ],
)
def test_other_forms_are_refused_with_a_form_that_is_accepted(
    session: dpsql.Session, statement: str, place: int, cure: str
) -> None:
    with pytest.raises(ParseError, match=re.escape(cure)) as refused:
        session.as_analyst("ana").sql(statement)
    assert refused.value.span
    assert refused.value.span.column == place


def test_a_view_that_no_query_can_read_is_refused(session: dpsql.Session) -> None:
    for statement in ("DESCRIBE by_city", "SELECT * FROM by_city"):
        with pytest.raises(UnsupportedQueryError) as refused:
            session.as_analyst("ana").sql(statement, **({"rho": 0.1} if "*" in statement else {}))  # type: ignore[arg-type]
        assert [refusal.code for refusal in refused.value.refusals] == ["source"]


def test_they_take_no_arguments_or_options(session: dpsql.Session) -> None:
    analyst = session.as_analyst("ana")
    with pytest.raises(PolicyError):
        analyst.sql("FROM dp_tables('visits')")
    with pytest.raises(ParseError):
        analyst.sql("SHOW TABLES", rho=0.1)


def test_analysts_of_a_server_look_up_the_same(session: dpsql.Session) -> None:
    expected = [dict(zip(COLUMNS, row, strict=True)) for row in EVERYTHING]
    with in_background(session, door("ana"), door("curator")) as urls:
        shown = request(urls.analysts, "GET", "/v1/tables", name="ana")
        again = request(urls.analysts, "GET", "/v1/tables", name="ana")
        stranger = request(urls.analysts, "GET", "/v1/tables")
        of_curator = request(urls.curator or "", "GET", "/v1/tables", name="curator")
        description = request(urls.analysts, "GET", "/openapi.json").json
        with dpsql.remote.connect(urls.analysts, token=token_of("ana")) as remote:
            assert remote.sql("SHOW TABLES").fetchall() == session.sql("SHOW TABLES").fetchall()
            assert remote.sql("DESCRIBE visits").fetchall() == VISITS
    assert (shown.status, plain_rows(shown.json)) == (200, expected)
    assert (again.body, stranger.status, plain_rows(of_curator.json)) == (shown.body, 401, expected)
    assert set(description["paths"]["/v1/tables"]) == {"get", "head"}
    assert CANARY not in shown.body.decode()


@needs_shell
def test_the_shell_looks_up_the_same(monkeypatch: pytest.MonkeyPatch, session: dpsql.Session) -> None:
    monkeypatch.setenv("DPSQL_HELPER", PROGRAM)
    with (
        in_background(session, door("ana")) as urls,
        duckdb.connect(config={"allow_unsigned_extensions": True}) as shell,
    ):
        shell.execute(f"LOAD '{native_library()}'")
        for statement in (*TABLES, *POLICY):
            shell.execute(statement).fetchall()
        of_shell = shell.execute("FROM dp_tables()")
        assert tuple(column for column, *_ in of_shell.description) == COLUMNS
        assert of_shell.fetchall() == EVERYTHING
        shell.execute(f"CALL dp_server('{urls.analysts}', token := '{token_of('ana')}')").fetchall()
        assert shell.execute("FROM dp_tables() WHERE table_name = 'bills'").fetchall() == EVERYTHING[: len(BILLS)]
