"""The tables of a state file, and the statements that lift those of older formats to the next one."""

from __future__ import annotations

_SNAPSHOT = """
CREATE TABLE snapshot (
    frame_hash TEXT PRIMARY KEY REFERENCES frame(frame_hash), value_count INTEGER NOT NULL,
    floor INTEGER NOT NULL CHECK (floor >= 0), exact_values BLOB NOT NULL
) STRICT;
"""

# Correlated noise, floors, frozen histograms, and the policy's least number of units per group.
FORMAT_2 = f"""
ALTER TABLE protected_table ADD COLUMN min_units INTEGER;
ALTER TABLE point ADD COLUMN correlation REAL NOT NULL DEFAULT 0.0;
ALTER TABLE point ADD COLUMN floor_correlation REAL;
ALTER TABLE point ADD COLUMN floor INTEGER NOT NULL DEFAULT 0;
{_SNAPSHOT}
"""

_CLEARANCES = """
CREATE TABLE analyst (name TEXT PRIMARY KEY, rho_limit INTEGER CHECK (rho_limit > 0)) STRICT;
CREATE TABLE remembered_table (name TEXT PRIMARY KEY, columns TEXT NOT NULL) STRICT;
CREATE TABLE link (
    name TEXT PRIMARY KEY REFERENCES protected_table(name), columns TEXT NOT NULL,
    parent TEXT NOT NULL REFERENCES protected_table(name), parent_columns TEXT NOT NULL
) STRICT;
"""

# Analysts and what each was shown, windows and ceilings, tables that are gone, refreshes, links. So far charged points
# only joined above all others, so what a point that stands alone was made of is the next one.
FORMAT_3 = f"""
ALTER TABLE protected_table ADD COLUMN rho_window_low INTEGER;
ALTER TABLE protected_table ADD COLUMN rho_window_high INTEGER;
ALTER TABLE protected_table ADD COLUMN rho_ceiling INTEGER;
ALTER TABLE frame ADD COLUMN base_hash TEXT;
ALTER TABLE frame ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE point ADD COLUMN source_rho INTEGER;
ALTER TABLE release ADD COLUMN levels TEXT NOT NULL DEFAULT '[]';
UPDATE point SET source_rho = (
    SELECT min(above.rho_nano) FROM point AS above WHERE above.tau IS NOT NULL
    AND above.statistic_hash = point.statistic_hash AND above.rho_nano > point.rho_nano
) WHERE tau IS NULL AND correlation > 0;
{_CLEARANCES}
"""

_LASTING_ANSWERS = """
CREATE TABLE auto_choice (
    id INTEGER PRIMARY KEY, statistic_hash TEXT NOT NULL, analyst TEXT NOT NULL COLLATE NOCASE,
    share_low INTEGER NOT NULL, share_high INTEGER NOT NULL, rho_nano INTEGER NOT NULL,
    FOREIGN KEY (statistic_hash, rho_nano) REFERENCES point(statistic_hash, rho_nano)
) STRICT;
CREATE INDEX auto_choice_of_reader ON auto_choice (statistic_hash, analyst);
CREATE TABLE version_mark (
    table_name TEXT NOT NULL, version TEXT NOT NULL, part TEXT NOT NULL, value TEXT NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (table_name, version, part)
) STRICT;
CREATE TABLE key_list (
    id INTEGER PRIMARY KEY AUTOINCREMENT, table_name TEXT NOT NULL, column_name TEXT NOT NULL, key_type TEXT NOT NULL,
    digest TEXT NOT NULL, at TEXT NOT NULL, keys BLOB NOT NULL
) STRICT;
CREATE INDEX list_of_column ON key_list (table_name, column_name, key_type);
CREATE TABLE version_columns (
    table_name TEXT NOT NULL, version TEXT NOT NULL, columns TEXT NOT NULL, PRIMARY KEY (table_name, version)
) STRICT;
CREATE TABLE lowered_point (
    id INTEGER PRIMARY KEY,
    statistic_hash TEXT NOT NULL, rho_nano INTEGER NOT NULL CHECK (rho_nano > 0),
    release_rho INTEGER NOT NULL CHECK (release_rho > rho_nano),
    frame_hash TEXT NOT NULL REFERENCES frame(frame_hash), value_count INTEGER NOT NULL,
    lattice_exponent INTEGER NOT NULL, sigma REAL NOT NULL,
    created_at TEXT NOT NULL, noisy_values BLOB NOT NULL,
    correlation REAL NOT NULL, floor_correlation REAL, floor INTEGER NOT NULL,
    UNIQUE (statistic_hash, rho_nano, release_rho)
) STRICT;
CREATE TABLE pin (
    analyst TEXT NOT NULL, statistic_hash TEXT NOT NULL,
    asked_rho INTEGER NOT NULL, query_rho INTEGER NOT NULL, own_release INTEGER NOT NULL,
    served_rho INTEGER NOT NULL, release_rho INTEGER NOT NULL, has_threshold INTEGER NOT NULL,
    PRIMARY KEY (statistic_hash, analyst, asked_rho, query_rho, own_release)
) STRICT;
"""
LASTING_APPEND_ONLY = ("lowered_point", "pin", "auto_choice", "version_mark", "key_list")

# Before choices were kept one histogram chose for all levels. Its reader keeps it where they asked, and a little above:
# beside k shares of 1/32 for AUTO statistics have 32 - k, and twice what was shown over 32 - k is more than a share.
OLD_CHOICES = """
INSERT INTO auto_choice (statistic_hash, analyst, share_low, share_high, rho_nano)
SELECT statistic_hash, analyst, 1, max(2 * (shown / (32 - asked_count))), rho_nano FROM (
    SELECT asked.value AS statistic_hash, release.analyst, release.rho_nano AS shown, point.rho_nano AS rho_nano,
           count(*) OVER (PARTITION BY release.id) AS asked_count
    FROM release, json_each(release.statistics) AS asked
    JOIN point ON point.statistic_hash = asked.value AND point.frame_hash = point.statistic_hash
) GROUP BY statistic_hash, lower(analyst) ORDER BY statistic_hash, lower(analyst)
"""

LATER_KEYS = """
CREATE TABLE point_tail (
    point_id INTEGER NOT NULL REFERENCES point(id), number INTEGER NOT NULL,
    value_count INTEGER NOT NULL, noisy_values BLOB NOT NULL,
    PRIMARY KEY (point_id, number)
) STRICT;
"""

FORMAT_4 = f"""
ALTER TABLE protected_table ADD COLUMN separate_people INTEGER NOT NULL DEFAULT 0;
ALTER TABLE public_table ADD COLUMN decision TEXT;
ALTER TABLE release ADD COLUMN changed TEXT NOT NULL DEFAULT '[]';
{_LASTING_ANSWERS}
{OLD_CHOICES}
"""

FORMAT_6 = """
ALTER TABLE protected_table ADD COLUMN max_rows_norm REAL;
ALTER TABLE protected_table ADD COLUMN max_rows_per_unit INTEGER
"""

FORMAT_7 = "ALTER TABLE protected_table ADD COLUMN coverage INTEGER NOT NULL DEFAULT 0"

FORMAT_8 = """
ALTER TABLE domain ADD COLUMN ordered TEXT;
ALTER TABLE protected_table ADD COLUMN time_zone TEXT
"""

_BUDGET_PARTS = "ALTER TABLE analyst ADD COLUMN budget_part REAL"

# Compositions, units without thresholds, and parts for analysts. Budgets so far were converted by zCDP.
FORMAT_9 = f"""
ALTER TABLE unit ADD COLUMN composition TEXT NOT NULL DEFAULT 'zcdp';
ALTER TABLE unit ADD COLUMN thresholds INTEGER NOT NULL DEFAULT 1;
{_BUDGET_PARTS};
DROP INDEX charge_of_unit;
CREATE INDEX charge_of_unit ON charge (unit, analyst, rho_nano, delta_units)
"""

# Levels at which questions by relative error stopped.
STOPS = """
CREATE TABLE stop (
    question TEXT NOT NULL, analyst TEXT NOT NULL, rho_nano INTEGER NOT NULL CHECK (rho_nano > 0),
    steps INTEGER NOT NULL, ending TEXT NOT NULL, PRIMARY KEY (question, analyst)
) STRICT
"""
# An index takes no function of JSON. Quotes inside a value have a backslash before them, so no value looks like this.
_IS_UNDONE = """noun <> 'Domain' AND instr(declaration, '"withdrawn": true') > 0"""
_UNDONE = f"""
CREATE INDEX undone ON policy_log (id) WHERE {_IS_UNDONE}
"""
LAST_UNDONE = f"SELECT coalesce(max(id), 0) FROM policy_log WHERE {_IS_UNDONE}"
"""Number of the last declaration of a unit or table that was undone or replaced; the index answers it."""
LAST_DECLARED = "SELECT coalesce(max(id), 0) FROM policy_log"
"""Number of the last declaration of any kind, undone ones, too."""

# Tables that are archived, and the last declaration that was undone.
FORMAT_11 = f"""
ALTER TABLE protected_table ADD COLUMN archived INTEGER NOT NULL DEFAULT 0;
{_UNDONE}
"""
# Caps of charges that released numbers chose, what a reader with a limit was shown of a charge, and the claims of
# questions whose charges follow from released numbers.
_CLAIMS = "CREATE INDEX claimed ON release (claim) WHERE claim <> '[]'"
FORMAT_12 = f"""
ALTER TABLE charge ADD COLUMN cap_nano INTEGER;
ALTER TABLE charge ADD COLUMN shown_rho INTEGER;
ALTER TABLE charge ADD COLUMN shown_delta TEXT;
ALTER TABLE release ADD COLUMN claim TEXT NOT NULL DEFAULT '[]';
{_CLAIMS}
"""
# Id of the state file, ids of its databases, and stamps that the curator accepted; the last row holds.
IDENTITY = """
CREATE TABLE identity (
    id INTEGER PRIMARY KEY AUTOINCREMENT, state_id TEXT NOT NULL, databases TEXT NOT NULL,
    accepted TEXT NOT NULL, at TEXT NOT NULL
) STRICT;
INSERT INTO identity (state_id, databases, accepted, at)
VALUES (lower(hex(randomblob(16))), '[]', '[]', strftime('%Y-%m-%dT%H:%M:%f+00:00', 'now'))
"""
# Groups, cuts and released sums that rows left out were measured beside; no key_ids for all groups.
MEASURED_GROUPS = """
CREATE TABLE measured_groups (
    point_id INTEGER PRIMARY KEY REFERENCES point(id), cut_exponent INTEGER NOT NULL,
    shown REAL NOT NULL, shown_sigma REAL NOT NULL CHECK (shown_sigma >= 0),
    presence_rho INTEGER NOT NULL CHECK (presence_rho >= 0), number_rho INTEGER NOT NULL CHECK (number_rho >= 0),
    key_count INTEGER, key_ids BLOB, CHECK ((key_count IS NULL) = (key_ids IS NULL))
) STRICT
"""
# Public tables whose rows analysts may see.
FORMAT_15 = "ALTER TABLE public_table ADD COLUMN readable INTEGER NOT NULL DEFAULT 0"
# Versions that read no format 16 would draw Gaussian noise for a unit whose composition is 'pure'.
FORMAT_16 = ""
# Amounts of delta are integers up to 2**100, more than an INTEGER holds: decimal text, added in Python.
DELTA_COLUMNS = frozenset(
    {"delta_threshold", "delta_units", "threshold_delta_units", "charged_delta_units", "shown_delta"}
)

TABLES = (
    """
CREATE TABLE unit (
    name TEXT PRIMARY KEY,
    rho_budget INTEGER NOT NULL, delta_threshold TEXT NOT NULL, delta_conversion REAL NOT NULL,
    composition TEXT NOT NULL DEFAULT 'zcdp', thresholds INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE TABLE protected_table (
    name TEXT PRIMARY KEY, unit TEXT NOT NULL REFERENCES unit(name), privacy_unit_column TEXT NOT NULL,
    max_groups INTEGER, max_rows_per_group INTEGER,
    default_rho INTEGER, default_epsilon REAL, default_delta REAL, min_units INTEGER,
    rho_window_low INTEGER, rho_window_high INTEGER, rho_ceiling INTEGER,
    separate_people INTEGER NOT NULL DEFAULT 0, max_rows_norm REAL, max_rows_per_unit INTEGER,
    coverage INTEGER NOT NULL DEFAULT 0, time_zone TEXT, archived INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE public_table (
    name TEXT PRIMARY KEY, decision TEXT, readable INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE table_version (
    table_name TEXT NOT NULL, number INTEGER NOT NULL, version TEXT NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (table_name, number), UNIQUE (table_name, version)
) STRICT;
CREATE TABLE domain (
    table_name TEXT NOT NULL, column_name TEXT NOT NULL,
    low REAL, high REAL,
    keys TEXT, keys_from_table TEXT REFERENCES public_table(name), keys_from_column TEXT,
    ordered TEXT,
    PRIMARY KEY (table_name, column_name)
) STRICT;
CREATE TABLE policy_log (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, noun TEXT NOT NULL, declaration TEXT NOT NULL
) STRICT;
CREATE TABLE charge (
    id INTEGER PRIMARY KEY AUTOINCREMENT, unit TEXT NOT NULL REFERENCES unit(name),
    statistic_hash TEXT NOT NULL, rho_nano INTEGER NOT NULL CHECK (rho_nano >= 0), delta_units TEXT NOT NULL,
    analyst TEXT NOT NULL, at TEXT NOT NULL, cap_nano INTEGER, shown_rho INTEGER, shown_delta TEXT
) STRICT;
CREATE INDEX charge_of_statistic ON charge (statistic_hash, unit);
CREATE INDEX charge_of_unit ON charge (unit, analyst, rho_nano, delta_units);
CREATE TABLE frame (
    frame_hash TEXT PRIMARY KEY, unit TEXT NOT NULL REFERENCES unit(name), tables TEXT NOT NULL,
    salt BLOB NOT NULL CHECK (length(salt) = 16),
    base_hash TEXT, generation INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE key_chunk (
    frame_hash TEXT NOT NULL REFERENCES frame(frame_hash), number INTEGER NOT NULL,
    row_count INTEGER NOT NULL, keys BLOB NOT NULL,
    PRIMARY KEY (frame_hash, number)
) STRICT;
CREATE TABLE point (
    id INTEGER PRIMARY KEY,
    statistic_hash TEXT NOT NULL, rho_nano INTEGER NOT NULL CHECK (rho_nano > 0),
    frame_hash TEXT NOT NULL REFERENCES frame(frame_hash), value_count INTEGER NOT NULL,
    lattice_exponent INTEGER NOT NULL, sigma REAL NOT NULL,
    tau REAL, threshold_delta_units TEXT NOT NULL,
    created_at TEXT NOT NULL, noisy_values BLOB NOT NULL,
    correlation REAL NOT NULL DEFAULT 0.0, floor_correlation REAL, floor INTEGER NOT NULL DEFAULT 0,
    source_rho INTEGER,
    UNIQUE (statistic_hash, rho_nano)
) STRICT;
CREATE TABLE closed_charge (
    charge_id INTEGER PRIMARY KEY REFERENCES charge(id), point_id INTEGER NOT NULL REFERENCES point(id)
) STRICT;
CREATE TABLE release (
    id INTEGER PRIMARY KEY AUTOINCREMENT, analyst TEXT NOT NULL, query_hash TEXT NOT NULL, at TEXT NOT NULL,
    statistics TEXT NOT NULL, mechanism TEXT NOT NULL,
    rho_nano INTEGER NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
    charged_rho_nano INTEGER NOT NULL, charged_delta_units TEXT NOT NULL,
    reused INTEGER NOT NULL, table_versions TEXT NOT NULL, levels TEXT NOT NULL DEFAULT '[]',
    changed TEXT NOT NULL DEFAULT '[]', claim TEXT NOT NULL DEFAULT '[]'
) STRICT;
"""
    + _SNAPSHOT
    + _CLEARANCES
    + _LASTING_ANSWERS
    + LATER_KEYS
    + _BUDGET_PARTS
    + ";"
    + STOPS
    + ";"
    + _UNDONE
    + ";"
    + _CLAIMS
    + ";"
    + IDENTITY
    + ";"
    + MEASURED_GROUPS
)

# Rows of these are written once; the file itself refuses to change or remove them, whatever the program says.
APPEND_ONLY = (
    "table_version",
    "policy_log",
    "charge",
    "closed_charge",
    "frame",
    "key_chunk",
    "release",
    "snapshot",
    "point_tail",
    "stop",
    "identity",
    "measured_groups",
    *LASTING_APPEND_ONLY,
)
