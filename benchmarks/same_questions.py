"""Random sessions for `benchmarks.same_answers`: tables, policies, and questions of each kind with what goes with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

CURATOR, DATABASE = "curator", "database"
"""Readers: the session itself, and its own connection to the database."""
ROWS = """
CREATE TABLE visits AS SELECT i AS visit_id, (i * 37 + i // 5) % 400 AS patient_id,
       ['Lund', 'Malmo', 'Ystad', 'Kiruna'][1 + (i * i + i // 7) % 4] AS city,
       'D' || floor(30 / (1 + (i * 31) % 29))::INTEGER AS diagnosis, (i * 7919 % 500)::DOUBLE AS cost,
       i % 4 = 0 AS urgent, DATE '2020-01-01' + ((i * 17) % 40)::INTEGER AS day FROM range(1800) t(i);
ALTER TABLE visits ADD PRIMARY KEY (visit_id);
CREATE TABLE people AS SELECT i AS patient_id, 1940 + i * 7 % 60 AS born, ['f', 'm'][1 + i % 2] AS sex FROM range(400) t(i);
ALTER TABLE people ADD PRIMARY KEY (patient_id);
CREATE TABLE meals AS SELECT (i * 13) % 1800 AS visit_id, ['soup', 'fish', 'rice'][1 + i % 3] AS dish FROM range(2500) t(i);
CREATE TABLE bills AS SELECT (i * i) % 400 AS patient_id, 'K' || (i * i % 11) AS kind, (i * 31 % 90)::DOUBLE AS amount
  FROM range(2400) t(i);
CREATE TABLE cities AS SELECT unnest(['Lund', 'Malmo', 'Ystad', 'Kiruna']) AS name, unnest(['S', 'S', 'S', 'N']) AS region;
CREATE TABLE days AS SELECT DATE '2020-01-01' + i::INTEGER AS day FROM range(40) t(i)
"""
POLICY = """
CALL dp_unit('patient', {budget});
CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient_id', max_groups_contributed := 3,
  max_rows_per_group := 2, default_rho := 0.2, default_delta := 1e-6{visits});
CALL dp_protect('people', unit := 'patient', privacy_unit_column := 'patient_id', max_groups_contributed := 1, max_rows_per_group := 1);
CALL dp_link('meals', 'visit_id', parent := 'visits.visit_id', max_groups_contributed := 3, max_rows_per_group := 5);
CALL dp_protect('bills', unit := 'patient', privacy_unit_column := 'patient_id');
CALL dp_domain('visits', 'cost', bounds := [0, 500]);
CALL dp_domain('people', 'born', bounds := [1940, 2000]);
CALL dp_public('cities');
CALL dp_public('days');
CALL dp_domain('visits', 'city', keys_from := 'cities.name');
CALL dp_domain('visits', 'urgent', keys := [true, false]);
CALL dp_domain('visits', 'day', keys_from := 'days.day')
"""
ANALYSTS = """;
CALL dp_analyst('ana', rho_limit := 0.3);
CALL dp_analyst('bea', budget_part := 0.3);
CALL dp_analyst('cyd', rho_limit := 0.05, budget_part := 0.5);
CALL dp_analyst('dan')
"""
RICH = "rho_budget := 400, delta_threshold := 1e-2, delta_conversion := 1e-6"
POOR = "epsilon_budget := 3, delta_budget := 1e-5"

NUMBERS = (
    "count(*) AS {}", "count(*) AS {}", "count(DISTINCT patient_id) AS {}", "count(DISTINCT patient_id) AS {}",
    "sum(cost) AS {}", "avg(cost) AS {}", "median(cost) AS {}", "quantile_cont(cost, 0.9) AS {}",
    "count(DISTINCT diagnosis) AS {}", "stddev(cost) AS {}", "count_if(cost > 250) AS {}", "bool_or(cost > 450) AS {}",
    "sum(cost) FILTER (WHERE urgent) AS {}", "dp_sum(cost, 0, 300) AS {}", "sum(cost * 2 - 1, weight => 2) AS {}",
    "sum(cost, contribution_bounds_per_group => (0, 800)) AS {}", "2 * count(*) AS {}", "sum(cost) / count(*) AS {}",
)  # fmt: skip
SOURCES = (
    *["visits"] * 8, "visits JOIN people USING (patient_id)", "visits v JOIN cities c ON v.city = c.name",
    "(SELECT * FROM visits WHERE cost < 400) AS visits", "visits SEMI JOIN people USING (patient_id)",
)  # fmt: skip
FILTERS = (*[""] * 6, *(f" WHERE cost <> {number}" for number in range(4)), " WHERE urgent", " WHERE city IN ('Lund', 'Ystad')")
PUBLIC, PRIVATE = ("city", "urgent", "city, urgent", "day", ""), ("diagnosis", "diagnosis", "diagnosis, urgent", "cost // 100")
Options = dict[str, object]


@dataclass(frozen=True, slots=True)
class Question:
    """A statement, its reader, and where a crash is planted: at the reading, or at the noise."""

    text: str
    reader: str = CURATOR
    crash: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """A session on a new database: its theme, statements that prepare it, and questions."""

    theme: str
    rows: tuple[str, ...]
    policy: tuple[str, ...]
    questions: tuple[Question, ...]


def query(options: Mapping[str, object], rest: str) -> str:
    """Return a private query with its options."""
    written = ", ".join(f"{name} = {value}" for name, value in options.items())
    return f"SELECT WITH DIFFERENTIAL_PRIVACY {f'OPTIONS ({written}) ' if options else ''}{rest}"


def level(random: Random) -> Options:
    """Return a level: by rho, by epsilon, or by default."""
    rho: Options = {"rho": random.choice((0.01, 0.04, 0.05, 0.2, 0.25, 1, 3))}
    return random.choice((rho, rho, rho, {"epsilon": random.choice((0.3, 1, 2)), "delta": "1e-6"}, {}))


def some(random: Random, **options: Sequence[object]) -> Options:
    """Return each option with probability 1 / 4, at one of its values."""
    return {name: random.choice(values) for name, values in options.items() if random.random() < 0.25}


def selected(random: Random, keys: str, numbers: Sequence[str] = NUMBERS, *, groups: str = "", more: str = "") -> str:
    """Return what follows the options: keys, one to three numbers, a source, a filter, and often an end of its own."""
    chosen = random.sample(numbers, random.choice((1, 1, 2, 3)))
    shown = [*filter(None, [keys]), *(one.format(name) for one, name in zip(chosen, ("n", "x", "y"), strict=False))]
    shown += [more] if more else random.choice(([], [], [], ["dp_interval_low(n) AS low", "dp_unbounded(n) AS whole"]))
    by = f" GROUP BY {groups or keys}" if groups or keys else ""
    ends = ("", "", "", " ORDER BY n DESC LIMIT 3", " HAVING n > 40", f" ORDER BY {keys or 'n'}", " QUALIFY rank() OVER (ORDER BY n DESC) < 4")
    text = f"{', '.join(shown)} FROM {random.choice(SOURCES)}{random.choice(FILTERS)}{by}"
    return text + (random.choice(ends) if by else "")


def bounds(random: Random) -> Options:
    """Return options about bounds of units and what they leave out."""
    bounding = some(random, bounding=("L2", "L0", "NORM"), coverage=("FALSE", "TRUE"))
    return bounding | some(random, max_groups_contributed=(1, 2, 4, "AUTO"), min_privacy_units_per_group=(5, 20))


def public(random: Random) -> str:
    """Return a query with public keys."""
    mechanisms = ("GAUSSIAN", "CORRELATED_GAUSSIAN", "DISCRETE_CORRELATED_GAUSSIAN")
    options = some(random, mechanism=mechanisms, group_selection_strategy=("GAUSSIAN_THRESHOLD", "PUBLIC_GROUPS"))
    return query(level(random) | options | bounds(random), selected(random, random.choice(PUBLIC)))


def private(random: Random) -> str:
    """Return a query with private keys: with thresholds, a window, the largest groups or a sketch."""
    options = some(random, own_threshold=("TRUE",), rho_ceiling=(3, 4), mechanism=("GSHM", "CSH"))
    kind = random.choice((options, options, {"top_k": 6}, {"rho": 0.2, "rho_window": "[0.01, 4]"}, {"mechanism": "MISRA_GRIES", "sketch_size": 40}))
    numbers = NUMBERS[2:3] if "sketch_size" in kind else NUMBERS
    return query(level(random) | kind | (bounds(random) if kind is options else {}), selected(random, random.choice(PRIVATE), numbers))


def sets(random: Random) -> str:
    """Return a query with grouping sets."""
    keys, groups = random.choice((
        ("city, urgent", "ROLLUP (city, urgent)"), ("city, urgent", "CUBE (city, urgent)"), ("diagnosis", "ROLLUP (diagnosis)"),
        ("city, diagnosis", "GROUPING SETS ((city, diagnosis), (diagnosis), ())"), ("city, urgent", "city, ROLLUP (urgent)"),
    ))  # fmt: skip
    return query(level(random) | bounds(random), selected(random, keys, NUMBERS[:6], groups=groups))


def keys_alone(random: Random) -> str:
    """Return a query for keys without numbers."""
    keys, filtered = random.choice(PRIVATE), random.choice(FILTERS)
    options = some(random, max_groups_contributed=(1, 2, 5), min_privacy_units_per_group=(5,), group_selection_strategy=("GAUSSIAN_THRESHOLD",))
    forms = (f"DISTINCT {keys} FROM visits{filtered}", f"{keys} FROM visits{filtered} GROUP BY {keys} ORDER BY ALL")
    return query(level(random) | options, random.choice(forms))


def keys_first(random: Random) -> str:
    """Return a query that selects keys first."""
    options = {"mechanism": "KEYS_FIRST", "max_groups_contributed": random.choice((2, 4, 8, "AUTO"))}
    return query(level(random) | options | some(random, bounding=("NORM", "L2"), coverage=("FALSE",)), selected(random, random.choice(PRIVATE), NUMBERS[:6]))


def other(random: Random) -> str:
    """Return a query with a row for the groups that are not shown."""
    options = {"other_group": "'other'"} | some(random, max_groups_contributed=(1, 2), min_privacy_units_per_group=(20,), bounding=("L2",))
    return query(level(random) | options, selected(random, random.choice(PRIVATE[:3]), NUMBERS[:8]))


def totals(random: Random) -> str:
    """Return a query with running totals, or with ranges of a public key."""
    if random.random() < 0.5:
        window = random.choice(("ORDER BY day", "PARTITION BY city ORDER BY day", "ORDER BY day ROWS BETWEEN 6 PRECEDING AND CURRENT ROW"))
        keys = "city, day" if "city" in window else "day"
        number = random.choice(("count(*)", "sum(cost)"))
        return query(level(random) | some(random, mechanism=("FACTORISED_GAUSSIAN",)), f"{keys}, sum({number}) OVER ({window}) AS n FROM visits GROUP BY {keys}")
    span = random.choice(("date_trunc('week', day) AS w, count(*) AS n, sum(cost) FROM visits GROUP BY w", "count(*) AS n FROM visits WHERE day > DATE '2020-01-20'"))
    return query(level(random) | {"buckets": "day"}, span)


def relative(random: Random) -> str:
    """Return a question by relative error."""
    cap = random.choice(({"max_rho": 0.05}, {"max_rho": 0.5}, {"max_rho": 4}, {"max_epsilon": 1}, {"max_epsilon": 4}))
    options: Options = {"target_relative_error": random.choice((0.02, 0.1, 0.3)), **cap, "delta": "1e-6"}
    options |= some(random, at_least=(0.5, 1), confidence=(0.9, 0.99), coverage=("FALSE",), max_groups_contributed=(1, "AUTO"))
    more = random.choice(("", "dp_within_target(n) AS close"))
    return query(options, selected(random, random.choice((*PUBLIC, *PRIVATE)), NUMBERS[:6], more=more))


def half(random: Random) -> str:
    """Return a question by half widths."""
    width = random.choice((20, 60, 300, "{'n': 50}", "{'n': 3000, 'x': 40}", 0.1))
    options = {"target_half_width": width, "delta": "1e-6"} | some(random, confidence=(0.9, 0.99), max_rho=(0.5, 4), coverage=("FALSE",))
    return query(options | some(random, bounding=("L2", "NORM")), selected(random, random.choice((*PUBLIC, *PRIVATE)), NUMBERS[:5]))


def auto(random: Random) -> str:
    """Return a query whose bounds AUTO finds."""
    shown = random.choice((
        "kind, count(*) AS n, sum(amount) AS x FROM bills GROUP BY kind", "kind, median(amount) AS n FROM bills GROUP BY kind",
        "kind, count(DISTINCT patient_id) AS n FROM bills GROUP BY kind", "avg(amount) AS n FROM bills", "count(*) AS n, sum(amount) AS x FROM bills",
        "diagnosis, sum(cost, contribution_bounds_per_group => AUTO) AS n FROM visits GROUP BY diagnosis",
        "city, avg(cost, contribution_bounds_per_row => AUTO) AS n FROM visits GROUP BY city",
    ))  # fmt: skip
    by_norm = "city, sum(cost, contribution_norm => AUTO) AS n, count(*, contribution_norm => AUTO) FROM visits GROUP BY city"
    target = random.choice(({"target_half_width": 200, "max_rho": 4}, {"target_relative_error": 0.2, "max_rho": 2}))
    given = {**random.choice((level(random), level(random), target)), "delta": "1e-6"}
    if random.random() < 0.25:
        return query(given | {"bounding": "NORM"}, by_norm)
    return query(given | some(random, max_groups_contributed=(2, "AUTO"), coverage=("FALSE",)), shown)


def joined(random: Random) -> str:
    """Return a query of linked or joined tables, or a query around a private query."""
    rest = random.choice((
        "dish, count(*) AS n FROM meals GROUP BY dish", "city, dish, count(*) AS n FROM meals JOIN visits USING (visit_id) GROUP BY city, dish",
        "sex, count(*) AS n, avg(born) AS x FROM people GROUP BY sex", "c.region, count(*) AS n FROM visits v JOIN cities c ON v.city = c.name GROUP BY 1",
        "n, count(*) AS k FROM (SELECT patient_id, least(count(*), 5) AS n FROM visits GROUP BY patient_id) GROUP BY n",
        "sex, urgent, count(*) AS n FROM visits LEFT JOIN people USING (patient_id) GROUP BY ALL",
    ))  # fmt: skip
    if random.random() < 0.25:
        inner = query(level(random), "city, count(*) AS n FROM visits GROUP BY city")
        return f"WITH answer AS ({inner}) SELECT max(n) AS most, sum(n) AS total FROM answer"
    return query(level(random) | some(random, max_groups_contributed=(1, 3), coverage=("FALSE",)), rest)


def bad(random: Random) -> str:
    """Return a question that is refused."""
    counted = "city, count(*) AS n FROM visits GROUP BY city"
    wrong: tuple[Options, ...] = ({"rho": 1e6}, {"rho": -1}, {"rho": 1, "epsilon": 1}, {"roh": 1}, {"delta": 0.5}, {"rho": 1e-12}, {"at_least": 0.5}, {"as_of": "'none'"})
    texts = ("SELECT city, cost FROM visits", "SELECT max(cost) FROM visits", "SELECT count(*) FROM nothing", "SELECT cty, count(*) FROM visits GROUP BY cty",
             "SELECT city, count(*) FROM", "SELECT count(DISTINCT born) FROM visits", "DELETE FROM visits", "SELECT sum(visit_id) FROM visits")  # fmt: skip
    return random.choice((*texts, *(query(one, counted) for one in wrong)))


def looked_up(random: Random) -> str:
    """Return a look-up."""
    tables = ("dp_budget('patient')", "dp_budget()", "dp_releases()", "dp_policy()", "dp_tables()", "dp_cascade()", "dp_check('visits', by := 'city')")
    return random.choice((*(f"FROM {one}" for one in tables), "SHOW TABLES", "DESCRIBE visits", "FROM dp_budget('patient', analysts := ['ana', 'bea'])"))


def changed(random: Random) -> str:
    """Return a question after a change of rows or policy, or a change of the policy."""
    counted = selected(random, random.choice((*PUBLIC, *PRIVATE)))
    asked = (query(level(random) | {"refresh": "TRUE"}, counted), query(level(random) | {"as_of": "'1'"}, counted))
    calls = ("CALL dp_new_version('visits')", "CALL dp_protect('visits', max_rows_per_group := 3)", "CALL dp_domain('visits', 'cost', bounds := [0, 400])",
             "CALL dp_protect('visits', min_privacy_units_per_group := 10)", "CALL dp_unit('patient', rho_budget := 500)")  # fmt: skip
    return random.choice((*asked, *asked, *asked, *calls))


Shape = Callable[[Random], str]
SHAPES: tuple[Shape, ...] = (public, private, sets, keys_alone, keys_first, other, totals, relative, half, auto, joined, bad, looked_up, changed)
"""A kind of question each."""
THEMES: Mapping[str, tuple[str, str, str, tuple[Shape, ...]]] = {
    "public keys": (RICH, "", "", (public, public, public, joined)),
    "private keys": (RICH, "", "", (private, private, private)),
    "discrete noise": (RICH + ", composition := 'zcdp'", ", coverage := FALSE", "", (public, private, sets, totals)),
    "grouping sets": (RICH, "", ANALYSTS, (sets, sets, public)),
    "keys": (RICH, "", ANALYSTS, (keys_alone, keys_first, keys_first)),
    "other group": (RICH, ", rho_window := [0.01, 4]", "", (other, other, totals, private)),
    "AUTO": (RICH, ", coverage := FALSE", ANALYSTS, (auto, auto, auto)),
    "relative errors": (RICH, "", "", (relative, relative, relative)),
    "relative errors of analysts": (RICH, "", ANALYSTS, (relative, relative, auto)),
    "half widths": (RICH, "", ANALYSTS, (half, half, half)),
    "analysts": (RICH, "", ANALYSTS, (public, private, keys_alone, looked_up)),
    "little budget": (POOR, "", ANALYSTS, SHAPES),
    "public keys alone": ("epsilon_budget := 40, delta_budget := 1e-5, thresholds := false", "", "", (public, totals, half)),
    "versions": (RICH, ", rho_ceiling := 5, coverage := FALSE", ANALYSTS, (changed, changed, changed, private)),
}  # fmt: skip
"""Budget, settings of visits, analysts, and the kinds of question that a session has besides all others."""


def statements(text: str) -> tuple[str, ...]:
    """Return the statements of a text."""
    return tuple(one.strip() for one in text.split(";") if one.strip())


def questions(random: Random, count: int, own: tuple[Shape, ...], readers: Sequence[str]) -> tuple[Question, ...]:
    """Return questions: many of the own kinds, repeated ones, crashes, and plans before and after."""
    asked: list[Question] = []
    queries: list[str] = []
    while len(asked) < count:
        text = random.choice(queries) if queries and random.random() < 0.25 else random.choice(random.choice((own, own, SHAPES)))(random)
        reader = random.choice(readers)
        one = Question(text, CURATOR if text.startswith("CALL") else reader)
        if not text.startswith(("SELECT", "WITH")):
            asked.append(one)
            continue
        queries.append(text)
        around = [replace(one, text=f"FROM {name}($$ {text} $$)") for name in ("dp_explain", "dp_explain", "dp_describe")]
        asked += around[:1] * (random.random() < 0.15) + around[2:] * (random.random() < 0.05)
        asked += [replace(one, crash=random.choice(("reading", "noise")))] * (random.random() < 0.08)
        asked += [one] + [one] * (random.random() < 0.05) + around[1:2] * (random.random() < 0.1)
        asked += [Question("INSERT INTO visits SELECT visit_id + 5000, patient_id, city, 'D30', cost, urgent, day FROM visits WHERE visit_id < 300 "
                           "ON CONFLICT DO NOTHING", DATABASE)] * (changed in own and random.random() < 0.04)  # fmt: skip
    return tuple(asked[:count])


def trials(seed: int, count: int) -> tuple[Trial, ...]:
    """Return a session of each theme, with so many questions in all."""
    found = []
    for number, (theme, (budget, visits, analysts, own)) in enumerate(THEMES.items()):
        random = Random(f"{seed} {theme}")
        share = count * (number + 1) // len(THEMES) - count * number // len(THEMES)
        readers = (CURATOR, CURATOR, "ana", "bea", "cyd", "dan", "eve") if analysts else (CURATOR, CURATOR, "ana")
        policy = statements(POLICY.format(budget=budget, visits=visits) + analysts)
        found.append(Trial(theme, statements(ROWS), policy, questions(random, share, own, readers)))
    return tuple(found)
