"""Bounds of joined rows: no answer is far too low unless the bounds of one of its tables say so, which a line says."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

import dpsql
from dpsql.release.left_out import LeftOut
from dpsql.session.plan_cache import PlanCache
from dpsql.sql.source import row_bounds
from dpsql.sql.source.relation import Owner
from dpsql.sql.source.row_bounds import Meeting
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import silence

PEOPLE, EACH = 2_000, 6
BOUNDS = {
    "auto": "",
    "one": ", max_groups_contributed := 1, max_rows_per_group := 1",
    "some": ", max_groups_contributed := 4, max_rows_per_group := 5",
}
SUFFIXES = {"": ", PRIMARY KEY (pid, number), UNIQUE (id)", "_loose": ""}
RHO = 0.5


@dataclass(frozen=True)
class Form:
    """A way to read two tables.

    Attributes:
        text: the source, with ``{a}`` and ``{b}`` for the tables, and ``{p}`` for one with a row a person.
        joins_b: whether rows of the second table are joined, so that its bounds count.
        needs_key: whether it can be read only where the tables have keys.

    """

    text: str
    joins_b: bool = True
    needs_key: bool = False


FORMS = {
    "JOIN": Form("{a} a JOIN {b} b ON a.pid = b.pid AND a.number = b.number"),
    "JOIN of all rows": Form("{a} a JOIN {b} b ON a.pid = b.pid"),
    "LEFT": Form("{a} a LEFT JOIN {b} b ON a.pid = b.pid AND a.number = b.number"),
    "IN": Form("{a} a WHERE a.pid IN (SELECT pid FROM {b})", joins_b=False),
    "EXISTS": Form(
        "{a} a WHERE EXISTS (SELECT 1 FROM {b} b WHERE b.pid = a.pid AND b.number = a.number)", joins_b=False
    ),
    "link": Form("{link} b JOIN {a} a ON b.a_id = a.id", needs_key=True),
    "UNION ALL": Form("(SELECT pid, kind FROM {a} UNION ALL SELECT pid, kind FROM {b}) a"),
    "subquery by person": Form(
        "{a} a JOIN (SELECT pid, count(*) AS n FROM {b} GROUP BY pid) b ON a.pid = b.pid", joins_b=False
    ),
    "public": Form("{a} a JOIN kinds k ON a.kind = k.kind", joins_b=False),
    "three tables": Form("{a} a JOIN {p} p ON p.pid = a.pid JOIN {b} b ON b.pid = p.pid AND b.number = a.number"),
    "person": Form("{p} p JOIN {a} a ON p.pid = a.pid", joins_b=False),
}


@dataclass(frozen=True)
class Case:
    """A form, the bounds of both tables, and whether constraints say which rows are unique."""

    form: str
    a: str
    b: str
    keyed: bool

    def __str__(self) -> str:
        return f"{self.form}, {self.a} and {self.b}, {'keys' if self.keyed else 'no keys'}"


CASES = [
    Case(form, a, b, keyed)
    for form, a, b, keyed in itertools.product(FORMS, BOUNDS, BOUNDS, (True, False))
    if keyed or not FORMS[form].needs_key
]
# the first one is the policy of README, which has no key
SOME = [Case("person", "auto", "auto", keyed=False), *random.Random(46).sample(CASES[:-18], 13)]


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        for declaration in _declarations(session):
            session.sql(declaration)
        silence(session)
        yield session


def _declarations(session: dpsql.Session) -> Iterator[str]:
    """Yield the policy, and make its tables: each with each of the bounds, with keys and without."""
    yield "CALL dp_unit('person', rho_budget := 1e6, delta_threshold := 0.4, delta_conversion := 0.1)"
    rows = f"SELECT i // {EACH}, i % {EACH}, i, i % 3 FROM range({PEOPLE * EACH}) t(i)"
    columns = "pid INTEGER NOT NULL, number INTEGER NOT NULL, id INTEGER NOT NULL, kind INTEGER NOT NULL"
    of_person = "unit := 'person', privacy_unit_column := 'pid'"
    for (suffix, keys), (name, said) in itertools.product(SUFFIXES.items(), BOUNDS.items()):
        for table in (f"a_{name}{suffix}", f"b_{name}{suffix}"):
            session.connection.execute(f"CREATE TABLE {table} ({columns}{keys}); INSERT INTO {table} {rows}")
            yield f"CALL dp_protect('{table}', {of_person}{said})"
            yield f"CALL dp_domain('{table}', 'kind', keys := [0, 1, 2])"
    for a, (b, said) in itertools.product(BOUNDS, BOUNDS.items()):
        session.connection.execute(f"CREATE TABLE link_{a}_{b} AS SELECT id AS a_id, kind FROM b_{b}")
        yield f"CALL dp_link('link_{a}_{b}', 'a_id', parent := 'a_{a}.id'{said})"
    for suffix in SUFFIXES:
        key = ", PRIMARY KEY (pid)" if not suffix else ""
        session.connection.execute(f"CREATE TABLE people{suffix} (pid INTEGER NOT NULL, sex INTEGER{key})")
        session.connection.execute(f"INSERT INTO people{suffix} SELECT i, i % 2 FROM range({PEOPLE}) t(i)")
        yield f"CALL dp_protect('people{suffix}', {of_person}{BOUNDS['one']})"
    session.connection.execute("CREATE TABLE kinds AS SELECT i AS kind, 'k' || i AS name FROM range(3) t(i)")
    yield "CALL dp_public('kinds')"


@dataclass(frozen=True)
class Answer:
    """A count over joined rows without noise, beside the true one.

    Attributes:
        share: the part of the true rows that is counted.
        missing: the most rows that one group lacks.
        width: half width of the largest count.
        lacking: the rows that all groups lack.
        line: the line below the answer that says what bounds leave out, without line breaks.
        left_out: the released number of rows left out, if it has one.
        notes: notes of the receipt.
        each: true rows of a person in a group.
        most: the most rows of one person, if it was asked for.

    """

    share: float
    missing: float
    width: float
    lacking: float
    line: str
    left_out: LeftOut | None
    notes: tuple[str, ...]
    each: float
    most: int = 0


def _ask(session: dpsql.Session, source: str, key: str, bounds: str = "", groups: int | None = None) -> Answer:
    """Count the rows of a source, by a key or all together."""
    text = f"SELECT {key or 0} AS k, count(*) AS n FROM {source}{f' GROUP BY {key}' if key else ''}"
    true = dict(session.connection.execute(text).fetchall())
    options = f"WITH DIFFERENTIAL_PRIVACY OPTIONS (max_groups_contributed = {groups}) " if groups else ""
    text = text.replace("SELECT ", f"SELECT {options}", 1).replace("count(*)", f"count(*{bounds})", 1)
    answer = session.sql(text, rho=RHO, delta=1e-6)
    shown = dict(answer.fetchall())
    lines = "\n".join(answer.lines_below())
    line, *_ = re.findall(r"^(?:too low|bounds) +(.*?)(?=^\w|\Z)", lines, re.MULTILINE | re.DOTALL) or [""]
    receipt = receipt_of(answer)
    (width,) = [column.half_width_95 for column in receipt.columns]
    assert width is not None
    return Answer(
        share=sum(shown.values()) / max(1, sum(true.values())),
        missing=max(abs(rows - shown.get(group, 0)) for group, rows in true.items()),
        width=width,
        lacking=sum(true.values()) - sum(shown.values()),
        line=re.sub(r"\s+", " ", line),
        left_out=next((one.found for one in receipt.left_out), None),
        notes=receipt.notes,
        each=sum(true.values()) / len(true) / PEOPLE,
    )


def says_it(answer: Answer) -> bool:
    """Check that a line says that an unknown part is missing, or an end of it that is true."""
    if "unknown" in answer.line or "not known" in answer.line:
        return True
    found = answer.left_out
    if found is None:
        return False
    if found.is_too_low:
        return "left out" in answer.line and found.least <= answer.lacking
    if "could be" not in answer.line or found.could_be is None:
        return False
    # the line names the condition that no person lacks more than the cut
    return 1.0 - answer.share <= found.could_be or ("if no" in answer.line and answer.most > found.cut)


def _check(session: dpsql.Session, case: Case) -> None:
    form = FORMS[case.form]
    suffix = "" if case.keyed else "_loose"
    a, b = f"a_{case.a}{suffix}", f"b_{case.b}{suffix}"
    source = form.text.format(a=a, b=b, p=f"people{suffix}", link=f"link_{case.a}_{case.b}")
    for key in ("a.kind" if case.form != "link" else "b.kind", ""):
        answer = _ask(session, source, key)
        own = [case.b] if case.form == "link" else [case.a, *([case.b] if form.joins_b else [])]
        if not any(name == "one" or (name == "some" and not key) for name in own):
            assert answer.share >= 0.98, (case, key, answer)
        elif answer.share < 0.98:
            assert says_it(answer), (case, key, answer)
        if any("AUTO chose" in note for note in answer.notes):
            smallest = f", contribution_bounds_per_group => (0, {answer.each:.0f})"
            best = _ask(session, source, key, smallest, groups=3 if key else None)
            assert answer.share < 0.98 or answer.width <= 1.5 * best.width, (case, key, answer.width, best.width)


@pytest.mark.parametrize("case", SOME, ids=str)
def test_joined_rows_are_counted_unless_bounds_of_their_table_cut_them(session: dpsql.Session, case: Case) -> None:
    _check(session, case)


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in CASES if case not in SOME], ids=str)
def test_all_other_joined_rows_are_counted(session: dpsql.Session, case: Case) -> None:
    _check(session, case)


def test_the_check_sees_that_bounds_of_two_tables_were_merged(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the smallest number of both tables, where none counts as the smallest, as it was once."""

    def smaller(kind: str, left: Owner, right: Owner, meeting: Meeting) -> Owner:
        rules = left.rules if left.rules.max_groups else right.rules
        return replace(left, rules=replace(left.rules, max_groups=rules.max_groups, max_rows_per_group=1))

    monkeypatch.setattr(row_bounds, "bounds_after", smaller)
    monkeypatch.setattr(session._runner, "_plans", PlanCache())
    with pytest.raises(AssertionError, match=r"share=0\.1"):
        _check(session, Case("person", "auto", "auto", keyed=True))


@dataclass(frozen=True)
class Rows:
    """Rows of two tables that a join reads, and the bounds that it has by the policy: most groups, and rows in each."""

    source: str
    rows: int
    bounds: tuple[int, int]


@pytest.mark.parametrize(
    "one",
    [
        # an equality of WHERE, or of an expression, decides how many rows meet, too
        Rows("a_some a JOIN b_some b ON a.pid = b.pid WHERE a.number = b.number", 6, (4, 5)),
        Rows("a_some a JOIN b_some b ON a.pid = b.pid AND a.number + 1 = b.number", 5, (4, 5)),
        Rows("a_some a, b_some b WHERE a.pid = b.pid AND a.number + 1 = b.number", 5, (4, 5)),
        Rows("a_some a JOIN b_some b ON a.pid = b.pid", 36, (16, 25)),
        # the row of a person that a join takes need not be the one that meets
        Rows("a_some a LEFT JOIN b_one_loose b ON a.pid = b.pid AND a.number = b.number WHERE b.id IS NULL", 0, (5, 6)),
        # rows that meet none are rows of their own
        Rows("people p FULL JOIN people_loose q ON p.pid = q.pid AND p.sex + 1 = q.sex", 2, (2, 2)),
        Rows("people p JOIN people_loose q ON p.pid = q.pid", 1, (1, 1)),
    ],
    ids=lambda one: one.source,
)
def test_rows_that_conditions_decide_have_the_bounds_that_they_need(session: dpsql.Session, one: Rows) -> None:
    groups, rows = one.bounds
    bounds = f", contribution_bounds_per_group => (0, {max(1, one.rows)})"
    answer = _ask(session, one.source, "", bounds)
    assert answer.missing == 0
    assert answer.each in (one.rows, one.rows / 2)
    found = [note for note in answer.notes if note.startswith("bounds of the joined rows")]
    assert [f"max_groups {groups}, max_rows_per_group {rows} (" in note for note in found] == [True]


@pytest.mark.parametrize("public", ["JOIN {} ON t.n = a.n", "LEFT JOIN {} ON t.n = a.n"])
def test_public_rows_multiply_the_one_row_of_a_person(session: dpsql.Session, public: str) -> None:
    source = "(SELECT pid, count(*) AS n FROM a_some GROUP BY pid) a " + public.format(
        "(VALUES (6, 0), (6, 1)) t(n, g)"
    )
    answer = _ask(session, source, "")
    assert answer.missing == 0
    assert any("max_groups AUTO, max_rows_per_group AUTO (public tables make" in note for note in answer.notes)


def _random_bounds(chance: random.Random) -> str:
    """Return bounds of a table, each of them named or not."""
    named = {
        "max_groups_contributed": chance.choice((None, 1, 2, 4)),
        "max_rows_per_group": chance.choice((None, 1, 3, 20)),
        "max_rows_norm": chance.choice((None, None, None, 5)),
        "max_rows_per_unit": chance.choice((None, None, None, 1, 10)),
    }
    return "".join(f", {name} := {value}" for name, value in named.items() if value)


def _check_random(session: dpsql.Session, number: int) -> None:
    """Ask one random join of tables with random rows and bounds; a truth far outside has a line that says so."""
    chance = random.Random(number)
    form = chance.choice([form for name, form in FORMS.items() if name not in ("link", "public")])
    tables = {name: f"{name}_{number}" for name in ("a", "b", "p")}
    for name, table in tables.items():
        keyed = chance.random() < 0.5
        key = f", PRIMARY KEY ({'pid' if name == 'p' else 'pid, number'})" if keyed else ""
        each = "1" if name == "p" else chance.choice(("6", "1 + i % 9", "(1 / (0.003 + hash(i) % 1000 / 1000))::int"))
        session.connection.execute(
            f"CREATE TABLE {table} (pid INTEGER NOT NULL, number INTEGER NOT NULL, kind INTEGER NOT NULL{key}); "
            f"INSERT INTO {table} SELECT i, n, n % {chance.choice((1, 3))} "
            f"FROM (SELECT i, unnest(range({each})) AS n FROM range(400) t(i))"
        )
        session.sql(
            f"CALL dp_protect('{table}', unit := 'person', privacy_unit_column := 'pid'{_random_bounds(chance)})"
        )
        session.sql(f"CALL dp_domain('{table}', 'kind', keys := [0, 1, 2])")
    source = form.text.format(**tables)
    answer = _ask(session, source, chance.choice(("a.kind", "")))
    people = f"SELECT count(*) AS n FROM {source} GROUP BY a.pid"
    ((most,),) = session.connection.execute(f"SELECT max(n) FROM ({people})").fetchall()
    answer = replace(answer, most=most)
    assert abs(answer.missing) <= 3.0 * answer.width or says_it(answer), (number, form, answer)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_an_answer_far_from_the_truth_says_that_rows_are_missing(session: dpsql.Session, first: int) -> None:
    for number in range(first, first + 10):
        _check_random(session, number)


@pytest.mark.long
def test_answers_of_many_random_policies_say_that_rows_are_missing(session: dpsql.Session) -> None:
    for number in range(40, 240):
        _check_random(session, number)
