"""Random sessions for `benchmarks.same_answers`: tables, policies, and questions of each kind with their options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
CREATE TABLE people AS SELECT i AS patient_id, 1940 + i * 7 % 60 AS born, ['f', 'm'][1 + i % 2] AS sex
    FROM range(400) t(i);
ALTER TABLE people ADD PRIMARY KEY (patient_id);
CREATE TABLE meals AS SELECT (i * 13) % 1800 AS visit_id, ['soup', 'fish', 'rice'][1 + i % 3] AS dish
    FROM range(2500) t(i);
CREATE TABLE bills AS SELECT (i * i) % 400 AS patient_id, 'K' || (i * i % 11) AS kind, (i * 31 % 90)::DOUBLE AS amount
    FROM range(2400) t(i);
CREATE TABLE cities AS SELECT unnest(['Lund', 'Malmo', 'Ystad', 'Kiruna']) AS name,
    unnest(['S', 'S', 'S', 'N']) AS region;
CREATE TABLE days AS SELECT DATE '2020-01-01' + i::INTEGER AS day FROM range(40) t(i)
"""
POLICY = """
CALL dp_unit('patient', {budget});
CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient_id', max_groups_contributed := 3,
    max_rows_per_group := 2, default_rho := 0.2, default_delta := 1e-6{visits});
CALL dp_protect('people', unit := 'patient', privacy_unit_column := 'patient_id', max_groups_contributed := 1,
    max_rows_per_group := 1, default_delta := 1e-6);
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
CALL dp_analyst('ana', rho_limit := 1);
CALL dp_analyst('bea', budget_part := 0.3);
CALL dp_analyst('cyd', rho_limit := 0.2, budget_part := 0.5);
CALL dp_analyst('dan')
"""
DOORS = {"INSERT": DATABASE, "CALL": CURATOR, "FROM dp_check": CURATOR, "FROM dp_cascade": CURATOR}
"""Readers of statements that others may not have."""


# A line is a rule: its name and its alternatives, "-" for nothing, with "×3" for one that counts three times. Indented
# lines go on. <name> stands for one alternative of a rule.
GRAMMAR = """
level: rho = 0.01 | rho = 0.05 ×2 | rho = 0.2 ×2 | rho = 0.15 | rho = 1 | rho = 3 | epsilon = 0.3, delta = 1e-6
    | epsilon = 1, delta = 1e-6 | -
cap: max_rho = 0.05 | max_rho = 0.5 ×2 | max_rho = 4 | max_epsilon = 1 | max_epsilon = 4
error: 0.02 | 0.1 ×2 | 0.3
width: 40 | 100 ×2 | 400 ×2 | 3000 ×3 | {'n': 100} | {'n': 3000} | 0.1
asked: SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS
number: count(*) ×2 | count(DISTINCT patient_id) ×2 | sum(cost) ×2 | avg(cost) | median(cost) | quantile_cont(cost, 0.9)
    | count(DISTINCT diagnosis) | stddev(cost) | count_if(cost > 250) | bool_or(cost > 450) | sum(cost) / count(*)
    | sum(cost) FILTER (WHERE urgent) | dp_sum(cost, 0, 300) | sum(cost * 2 - 1, weight => 2) | 2 * count(*)
    | sum(cost, contribution_bounds_per_group => (0, 800))
numbers: <number> AS n ×3 | <number> AS n, <number> AS x | <number> AS n, <number> AS x, <number> AS y
    | <number> AS n, dp_interval_low(n) AS low | count(*) AS n, dp_unbounded(n) AS whole
plain: count(*) ×2 | count(DISTINCT patient_id) ×2 | sum(cost) | avg(cost)
plains: <plain> AS n ×2 | <plain> AS n, <plain> AS x | <plain> AS n, sum(cost) AS y, dp_interval_high(n) AS high
source: visits ×8 | visits JOIN people USING (patient_id) | visits v JOIN cities c ON v.city = c.name
    | (SELECT * FROM visits WHERE cost < 400) AS visits | visits SEMI JOIN people USING (patient_id)
filter: - ×5 | WHERE cost <> 0 | WHERE cost <> 1 | WHERE urgent | WHERE city IN ('Lund', 'Ystad')
end: - ×4 | ORDER BY n DESC LIMIT 3 | ORDER BY n DESC LIMIT 2 OFFSET 1 | HAVING n > 40 | ORDER BY ALL
    | QUALIFY rank() OVER (ORDER BY n DESC) < 4
rows: FROM <source> <filter> GROUP BY ALL <end>
open: city | urgent | city, urgent | day
hidden: diagnosis ×3 | diagnosis, urgent | cost // 100 AS hundreds
bounding: - ×5 | bounding = L2 | bounding = L0 | bounding = NORM
coverage: - ×3 | coverage = FALSE | coverage = TRUE
groups: - ×4 | max_groups_contributed = 1 | max_groups_contributed = 4 | max_groups_contributed = AUTO
least: - ×5 | min_privacy_units_per_group = 5 | min_privacy_units_per_group = 20
few: - ×2 | max_groups_contributed = 1 | max_groups_contributed = 2
bounds: <bounding>, <coverage>, <groups>, <least>
by_list: - | mechanism = GAUSSIAN | mechanism = CORRELATED_GAUSSIAN | group_selection_strategy = GAUSSIAN_THRESHOLD
    | group_selection_strategy = PUBLIC_GROUPS
by_threshold: - | own_threshold = TRUE | rho_ceiling = 4 | mechanism = GSHM

public: <asked> (<level>, <by_list>, <coverage>, <least>) <open>, <numbers> <rows> ×3
    | <asked> (<level>, <bounds>) <open>, <plains> <rows> ×2
    | <asked> (<level>, <coverage>) <numbers> FROM <source> <filter>
discrete: <asked> (<level>, mechanism = DISCRETE_CORRELATED_GAUSSIAN, <few>, <least>) <open>, <numbers> <rows>
private: <asked> (<level>, <by_threshold>, <coverage>, <few>, <least>) <hidden>, <numbers> <rows> ×3
    | <asked> (<level>, <bounds>) <hidden>, <plains> <rows> ×2
    | <asked> (<level>, top_k = 6, mechanism = CSH) <hidden>, <plains> <rows>
    | <asked> (<level>, top_k = 6) <hidden>, <plains> <rows>
    | <asked> (<level>, rho_window = [0.001, 4], delta = 1e-6) <hidden>, <plains> <rows>
    | <asked> (<level>, mechanism = MISRA_GRIES, sketch_size = 40) <hidden>, count(DISTINCT patient_id) AS n <rows>
set: ROLLUP (city, urgent) | CUBE (city, urgent) | GROUPING SETS ((city, urgent), (urgent), ()) | city, ROLLUP (urgent)
sets: <asked> (<level>, <bounding>, <coverage>, <few>, <least>) city, urgent, <plains> FROM <source> <filter> GROUP
      BY <set> <end> ×2
    | <asked> (<level>, <coverage>) diagnosis, <plains> FROM visits <filter> GROUP BY ROLLUP (diagnosis) <end>
    | <asked> (<level>) city, diagnosis, <plain> AS n, grouping_id(city, diagnosis) AS k
      FROM visits <filter> GROUP BY GROUPING SETS ((city, diagnosis), (diagnosis), ()) HAVING k < 3
keys_alone: <asked> (<level>, <few>, <least>) DISTINCT <hidden> FROM visits <filter>
    | <asked> (<level>) <hidden> FROM visits <filter> GROUP BY ALL ORDER BY ALL
    | <asked> (<level>, group_selection_strategy = GAUSSIAN_THRESHOLD) DISTINCT <open> FROM visits
keys_first: <asked> (<level>, mechanism = KEYS_FIRST, <bounding>, <coverage>, max_groups_contributed = 3) <hidden>,
      <plains> <rows>
    | <asked> (<level>, mechanism = KEYS_FIRST, max_groups_contributed = AUTO) diagnosis, <plains> FROM visits GROUP
      BY 1
named: diagnosis ×2 | diagnosis, urgent
other: <asked> (<level>, other_group = 'other', <coverage>, <least>) <named>, <plains> <rows> ×2
    | <asked> (<level>, other_group = 'rest', bounding = L2, max_groups_contributed = 2) diagnosis, <plains> <rows>
frame: ORDER BY day | ORDER BY day DESC | ORDER BY day ROWS BETWEEN 6 PRECEDING AND CURRENT ROW
totals: <asked> (<level>, <coverage>) day, sum(count(*)) OVER (<frame>) AS n FROM visits <filter> GROUP BY day
    | <asked> (<level>, mechanism = FACTORISED_GAUSSIAN) city, day, sum(sum(cost)) OVER (PARTITION BY city <frame>) AS n
      FROM visits GROUP BY city, day
    | <asked> (<level>, buckets = day) date_trunc('week', day) AS w, count(*) AS n, sum(cost) FROM visits GROUP BY w
    | <asked> (<level>, buckets = day) count(*) AS n FROM visits WHERE day > DATE '2020-01-20'
share: - ×3 | at_least = 0.5 | at_least = 1 | confidence = 0.9 | confidence = 0.99, at_least = 0.75
goal: target_relative_error = <error>, <cap>, delta = 1e-6, <share>
relative: <asked> (<goal>, <coverage>, <groups>) <open>, <plains> <rows> ×2
    | <asked> (<goal>, <coverage>) <hidden>, <plains> <rows> ×2 | <asked> (<goal>, <coverage>) <plains> FROM <source>
    | <asked> (<goal>) day, <plain> AS n FROM visits <filter> GROUP BY day ORDER BY n DESC LIMIT 3 ×2
    | <asked> (<goal>) city, count(*) AS n, avg(cost) AS x, dp_within_target(n) AS close FROM visits GROUP BY city <end>
width_of: count(*) AS n | count(DISTINCT patient_id) AS n, count(*) AS x | sum(cost) AS n, count(*) AS x
sure: - ×3 | confidence = 0.9 | confidence = 0.99 | max_rho = 4 | max_epsilon = 1
half: <asked> (target_half_width = <width>, delta = 1e-6, <sure>, <coverage>) <open>, <width_of> <rows> ×2
    | <asked> (target_half_width = <width>, delta = 1e-6, <sure>, <few>) <hidden>, <width_of> <rows> ×2
    | <asked> (target_half_width = <width>, <sure>, <coverage>) <width_of> FROM <source>
    | <asked> (target_half_width = <width>) city, urgent, count(*) AS n FROM visits GROUP BY ROLLUP (city, urgent)
    | <asked> (target_half_width = <width>, max_rho = 4, delta = 1e-6) kind, count(*) AS n FROM bills GROUP BY kind
given: <level> ×4 | target_half_width = 200, max_rho = 4 | target_relative_error = 0.2, <cap>
bill: kind, count(*) AS n, sum(amount) AS x | kind, median(amount) AS n | kind, avg(amount) AS n
    | kind, count(DISTINCT patient_id) AS n
auto: <asked> (<given>, <coverage>) <bill> FROM bills GROUP BY kind <end> ×3
    | <asked> (<given>) count(*) AS n, sum(amount) AS x, avg(amount) AS y FROM bills
    | <asked> (target_half_width = 150, <cap>) kind, count(*) AS n, sum(amount) AS x FROM bills GROUP BY kind
    | <asked> (<given>, bounding = NORM) kind, avg(amount) AS n FROM bills GROUP BY kind
    | <asked> (<given>) kind, sum(amount) AS n, avg(amount) AS x FROM bills GROUP BY kind
    | <asked> (<given>, max_groups_contributed = AUTO, <bounding>) <hidden>, <plains> <rows>
    | <asked> (<given>) <hidden>, sum(cost, contribution_bounds_per_group => AUTO) AS n <rows>
    | <asked> (<given>) city, avg(cost, contribution_bounds_per_row => AUTO) AS n FROM visits GROUP BY city
    | <asked> (<given>, bounding = NORM) city, sum(cost, contribution_norm => AUTO) AS n FROM visits GROUP BY city
joined: <asked> (rho = 0.2, delta = 1e-6, <coverage>) dish, count(*) AS n FROM meals GROUP BY dish
    | <asked> (<level>, <groups>) city, dish, count(*) AS n FROM meals JOIN visits USING (visit_id) GROUP BY city, dish
    | <asked> (rho = 0.2) sex, count(*) AS n, avg(born) AS x FROM people GROUP BY sex
    | <asked> (<level>) c.region, count(*) AS n FROM visits v JOIN cities c ON v.city = c.name GROUP BY 1
    | <asked> (rho = 0.2, delta = 1e-6) n, count(*) AS k FROM (SELECT patient_id, least(count(*), 5) AS n
      FROM visits GROUP BY 1)
      GROUP BY n
    | <asked> (<level>, <coverage>) sex, urgent, count(*) AS n FROM visits LEFT JOIN people USING (patient_id)
      GROUP BY ALL
    | SELECT city, n, n / sum(n) OVER () AS part FROM (<asked> (<level>) city, count(*) AS n FROM visits GROUP BY city)
    | WITH answer AS (<asked> (<level>) city, count(*) AS n FROM visits GROUP BY city) SELECT max(n), sum(n) FROM answer
wrong: rho = 1e6 | rho = -1 | rho = 1, epsilon = 1 | roh = 1 | rho = 1e-12 | at_least = 0.5 | as_of = 'none' | delta = 2
bad: <asked> (<wrong>) <open>, count(*) AS n FROM visits GROUP BY ALL ×4 | SELECT city, cost FROM visits
    | SELECT max(cost) FROM visits | SELECT count(*) FROM nothing | SELECT cty, count(*) FROM visits GROUP BY cty
    | SELECT city, count(*) FROM | DELETE FROM visits | SELECT sum(visit_id) FROM visits | FROM dp_check('nothing')
curated: FROM dp_check('visits', by := 'city') | FROM dp_check('bills') | FROM dp_policy() | FROM dp_cascade()
looked_up: <curated> ×3 | FROM dp_budget('patient') ×2 | FROM dp_budget() | FROM dp_releases() ×2 | FROM dp_tables()
    | SHOW TABLES | DESCRIBE visits
    | FROM dp_budget('patient', analysts := ['ana', 'bea'])
when: - ×3 | as_of = '1' | refresh = TRUE
changed: <asked> (rho = 0.2, <when>, <coverage>) <open>, <plains> <rows> ×3
    | <asked> (rho = 0.2, <when>, <few>) <hidden>, <plains> <rows> ×2
    | <asked> (<level>, <when>) <open>, <plains> <rows>
    | INSERT INTO visits SELECT visit_id + 5000, patient_id, city, 'D30', cost, urgent, day FROM visits
      WHERE visit_id < 300 ON CONFLICT DO NOTHING ×2
    | CALL dp_new_version('visits') | CALL dp_protect('visits', max_rows_per_group := 3)
    | CALL dp_domain('visits', 'cost', bounds := [0, 400]) | CALL dp_unit('patient', rho_budget := 500)
    | CALL dp_protect('visits', min_privacy_units_per_group := 10)
any: <public> | <private> | <sets> | <keys_alone> | <keys_first> | <other> | <totals> | <relative> | <half> | <auto>
    | <joined> | <bad> | <looked_up> ×2
"""
LEVELS = ("level", "cap", "error", "width", "when")
"""Rules that are chosen anew where a question is repeated at another level or of another version."""
RICH = "rho_budget := 400, delta_threshold := 1e-2, delta_conversion := 1e-6"
DISCRETE = f"{RICH}, composition := 'zcdp'"
POOR = "epsilon_budget := 3, delta_budget := 1e-5"
WITHOUT_THRESHOLDS = "epsilon_budget := 20, delta_budget := 1e-5, thresholds := false"
THEMES: Mapping[str, tuple[str, str, str, str]] = {
    "public keys": (RICH, "", "", "public public joined"),
    "private keys": (RICH, "", "", "private private private"),
    "discrete noise": (DISCRETE, ", coverage := FALSE", "", "discrete discrete private sets totals"),
    "grouping sets": (RICH, "", ANALYSTS, "sets sets public"),
    "keys": (RICH, "", ANALYSTS, "keys_alone keys_first keys_first"),
    "other group": (RICH, ", rho_window := [0.001, 4]", "", "other other totals private"),
    "AUTO": (RICH, ", coverage := FALSE", ANALYSTS, "auto auto"),
    "relative errors": (RICH, "", "", "relative relative"),
    "relative errors of analysts": (RICH, "", ANALYSTS, "relative relative auto"),
    "half widths": (RICH, "", ANALYSTS, "half half"),
    "analysts": (RICH, "", ANALYSTS, "public private keys_alone looked_up"),
    "little budget": (POOR, "", ANALYSTS, "any"),
    "public keys alone": (WITHOUT_THRESHOLDS, "", "", "public public public totals totals half half"),
    "versions": (RICH, ", rho_ceiling := 5, coverage := FALSE", ANALYSTS, "changed changed changed private"),
}
"""Budget, settings of visits, analysts, and the rules of most questions."""


@dataclass(frozen=True, slots=True)
class Question:
    """A statement, its reader, and the place of a planted crash: "reading", "noise" or none."""

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


def read_grammar(text: str) -> Mapping[str, tuple[str, ...]]:
    """Return the alternatives of each rule, each as often as it counts."""
    rules = {}
    for line in re.sub(r"\n +", " ", text).strip().splitlines():
        if line:
            name, _, written = line.partition(": ")
            ways = (re.fullmatch(r"(.*?)(?: ×(\d+))?", one.strip()) for one in written.split(" | "))
            rules[name] = tuple(way[1].removeprefix("-") for way in ways if way for _ in range(int(way[2] or 1)))
    return rules


RULES = read_grammar(GRAMMAR)


def expanded(random: Random, text: str, *, but: Sequence[str] = ()) -> str:
    """Return a text with an alternative in place of each rule, but for some rules."""
    while found := next((one for one in re.finditer(r"<(\w+)>", text) if one[1] not in but), None):
        text = text[: found.start()] + random.choice(RULES[found[1]]) + text[found.end() :]
    return text


def tidy(text: str) -> str:
    """Return a text without options that are nothing."""
    listed = re.sub(r"(, )+(?=, |\))", "", re.sub(r"\((, )+", "(", text))
    return re.sub(r" +", " ", listed.replace(" OPTIONS () ", " ")).strip()


def questions(random: Random, count: int, own: Sequence[str], readers: Sequence[str]) -> tuple[Question, ...]:
    """Return questions: most of them of the own rules; repeated ones, crashes, and plans before and after."""
    asked: list[Question] = []
    forms: list[tuple[str, str]] = []
    while len(asked) < count:
        if forms and random.random() < 0.3:
            form, text = random.choice(forms)
            text = random.choice((text, tidy(expanded(random, form))))
        else:
            form = expanded(random, f"<{random.choice((*own, 'any'))}>", but=LEVELS)
            text = tidy(expanded(random, form))
        asker = random.choice(readers)
        one = Question(text, next((reader for begin, reader in DOORS.items() if text.startswith(begin)), asker))
        if not re.match("(SELECT|WITH) .*DIFFERENTIAL", text):
            asked.append(one)
            continue
        forms.append((form, text))
        plan, columns = (replace(one, text=f"FROM {name}($$ {text} $$)") for name in ("dp_explain", "dp_describe"))
        crash = replace(one, crash=random.choice(("reading", "noise")))
        around = ((plan, 0.2), (columns, 0.05), (crash, 0.1), (one, 1), (one, 0.05), (plan, 0.15))
        asked += [each for each, often in around if random.random() < often]
    return tuple(asked[:count])


def trials(seed: int, count: int) -> tuple[Trial, ...]:
    """Return a session of each theme, with so many questions in all."""
    found = []
    for number, (theme, (budget, visits, analysts, own)) in enumerate(THEMES.items()):
        share = count * (number + 1) // len(THEMES) - count * number // len(THEMES)
        readers = [CURATOR] * 4 + ["ana", "ana", *(("bea", "bea", "cyd", "dan", "dan", "eve") if analysts else ())]
        asked = questions(Random(f"{seed} {theme}"), share, own.split(), readers)
        policy = POLICY.format(budget=budget, visits=visits) + analysts
        rows, declared = (tuple(one.strip() for one in text.split(";") if one.strip()) for text in (ROWS, policy))
        found.append(Trial(theme, rows, declared, asked))
    return tuple(found)
