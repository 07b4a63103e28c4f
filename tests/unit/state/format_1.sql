-- A state file of format 1, as the last program of that format wrote it; it is never changed.
PRAGMA journal_mode = WAL;
PRAGMA application_id = 1685091185;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE charge (
    id INTEGER PRIMARY KEY AUTOINCREMENT, unit TEXT NOT NULL REFERENCES unit(name),
    statistic_hash TEXT NOT NULL, rho_nano INTEGER NOT NULL CHECK (rho_nano >= 0), delta_units TEXT NOT NULL,
    analyst TEXT NOT NULL, at TEXT NOT NULL
) STRICT;
INSERT INTO "charge" VALUES(1,'patient','a',300,'1208925819614629174706177','ana','2026-01-01T00:00:00+00:00');
INSERT INTO "charge" VALUES(2,'patient','b',40,'0','ana','2026-01-01T00:00:00+00:00');
CREATE TABLE closed_charge (
    charge_id INTEGER PRIMARY KEY REFERENCES charge(id), point_id INTEGER NOT NULL REFERENCES point(id)
) STRICT;
INSERT INTO "closed_charge" VALUES(1,1);
CREATE TABLE domain (
    table_name TEXT NOT NULL, column_name TEXT NOT NULL,
    low REAL, high REAL,
    keys TEXT, keys_from_table TEXT REFERENCES public_table(name), keys_from_column TEXT,
    PRIMARY KEY (table_name, column_name)
) STRICT;
INSERT INTO "domain" VALUES('main.visits','cost',0.0,500.5,NULL,NULL,NULL);
CREATE TABLE frame (
    frame_hash TEXT PRIMARY KEY, unit TEXT NOT NULL REFERENCES unit(name), tables TEXT NOT NULL,
    salt BLOB NOT NULL CHECK (length(salt) = 16)
) STRICT;
INSERT INTO "frame" VALUES('frame','patient','["main.visits"]',X'000102030405060708090A0B0C0D0E0F');
CREATE TABLE key_chunk (
    frame_hash TEXT NOT NULL REFERENCES frame(frame_hash), number INTEGER NOT NULL,
    row_count INTEGER NOT NULL, keys BLOB NOT NULL,
    PRIMARY KEY (frame_hash, number)
) STRICT;
INSERT INTO "key_chunk" VALUES('frame',0,3,X'FFFFFFFF700000001000000000000A000C000600050008000A000000000104000C000000080008000000040008000000040000000100000014000000100014000800060007000C00000010001000000000000105100000001C00000004000000000000000400000063697479000000000400040004000000FFFFFFFFB000000014000000000000000C0018000600050008000C000C000000000304001C0000005800000000000000000000000C001E001000040008000C000C0000006000000024000000180000000300000000000000000000000000060008000700060000000000000103000000000000000000000012000000000000001800000000000000210000000000000040000000000000001800000000000000000000000100000003000000000000000100000000000000010000000000000028B52FFD200109000005000000000000100000000000000028B52FFD20108100000000000003000000030000000700000000000000000000070000000000000028B52FFD2007390000556C6D426F6E6EFFFFFFFF00000000');
CREATE TABLE point (
    id INTEGER PRIMARY KEY,
    statistic_hash TEXT NOT NULL, rho_nano INTEGER NOT NULL CHECK (rho_nano > 0),
    frame_hash TEXT NOT NULL REFERENCES frame(frame_hash), value_count INTEGER NOT NULL,
    lattice_exponent INTEGER NOT NULL, sigma REAL NOT NULL,
    tau REAL, threshold_delta_units TEXT NOT NULL,
    created_at TEXT NOT NULL, noisy_values BLOB NOT NULL,
    UNIQUE (statistic_hash, rho_nano)
) STRICT;
INSERT INTO "point" VALUES(1,'a',300,'frame',3,-1,2.5,7.0,'1208925819614629174706177','2026-01-01T00:00:00+00:00',X'FFFFFFFF800000001000000000000A000C000600050008000A000000000104000C000000080008000000040008000000040000000100000014000000100014000800060007000C00000010001000000000000102100000002000000004000000000000000500000076616C756500000008000C000800070008000000000000014000000000000000FFFFFFFFA000000014000000000000000C0018000600050008000C000C000000000304001C0000002800000000000000000000000C001E001000040008000C000C00000050000000240000001800000003000000000000000000000000000600080007000600000000000001020000000000000000000000000000000000000000000000000000002500000000000000000000000100000003000000000000000000000000000000180000000000000028B52FFD2018A50000602900FDFF0700000000000000020060E0016001000000FFFFFFFF00000000');
CREATE TABLE policy_log (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, noun TEXT NOT NULL, declaration TEXT NOT NULL
) STRICT;
INSERT INTO "policy_log" VALUES(1,'2026-01-01T00:00:00+00:00','Unit','{"name": "patient", "rho_budget": 1000, "delta_threshold": 1237940039285380274899124224, "delta_conversion": 1e-06}');
INSERT INTO "policy_log" VALUES(2,'2026-01-01T00:00:00+00:00','ProtectedTable','{"table": "main.visits", "unit": "patient", "privacy_unit_column": "patient_id", "max_groups": 4, "max_rows_per_group": 5, "default_rho": 300, "default_epsilon": null, "default_delta": 1e-09, "version": "1"}');
INSERT INTO "policy_log" VALUES(3,'2026-01-01T00:00:00+00:00','PublicTable','{"table": "main.cities", "version": "1"}');
INSERT INTO "policy_log" VALUES(4,'2026-01-01T00:00:00+00:00','Domain','{"table": "main.visits", "column": "cost", "bounds": [0.0, 500.5], "keys": null, "keys_from": null}');
CREATE TABLE protected_table (
    name TEXT PRIMARY KEY, unit TEXT NOT NULL REFERENCES unit(name), privacy_unit_column TEXT NOT NULL,
    max_groups INTEGER, max_rows_per_group INTEGER,
    default_rho INTEGER, default_epsilon REAL, default_delta REAL
) STRICT;
INSERT INTO "protected_table" VALUES('main.visits','patient','patient_id',4,5,300,NULL,1.0e-09);
CREATE TABLE public_table (name TEXT PRIMARY KEY) STRICT;
INSERT INTO "public_table" VALUES('main.cities');
CREATE TABLE release (
    id INTEGER PRIMARY KEY AUTOINCREMENT, analyst TEXT NOT NULL, query_hash TEXT NOT NULL, at TEXT NOT NULL,
    statistics TEXT NOT NULL, mechanism TEXT NOT NULL,
    rho_nano INTEGER NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
    charged_rho_nano INTEGER NOT NULL, charged_delta_units TEXT NOT NULL,
    reused INTEGER NOT NULL, table_versions TEXT NOT NULL
) STRICT;
INSERT INTO "release" VALUES(1,'ana','query','2026-01-01T00:00:00+00:00','["a"]','gshm',300,0.25,1.0e-09,300,'1208925819614629174706177',0,'[["main.visits", "1"]]');
CREATE TABLE table_version (
    table_name TEXT NOT NULL, number INTEGER NOT NULL, version TEXT NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (table_name, number), UNIQUE (table_name, version)
) STRICT;
INSERT INTO "table_version" VALUES('main.visits',1,'1','2026-01-01T00:00:00+00:00');
INSERT INTO "table_version" VALUES('main.cities',1,'1','2026-01-01T00:00:00+00:00');
CREATE TABLE unit (
    name TEXT PRIMARY KEY,
    rho_budget INTEGER NOT NULL, delta_threshold TEXT NOT NULL, delta_conversion REAL NOT NULL
) STRICT;
INSERT INTO "unit" VALUES('patient',1000,'1237940039285380274899124224',1.0e-06);
CREATE INDEX charge_of_unit ON charge (unit, rho_nano, delta_units);
CREATE INDEX charge_of_statistic ON charge (statistic_hash, unit);
CREATE TRIGGER table_version_no_update BEFORE UPDATE ON table_version BEGIN SELECT RAISE(ABORT, 'rows of table_version are never changed'); END;
CREATE TRIGGER table_version_no_delete BEFORE DELETE ON table_version BEGIN SELECT RAISE(ABORT, 'rows of table_version are never changed'); END;
CREATE TRIGGER policy_log_no_update BEFORE UPDATE ON policy_log BEGIN SELECT RAISE(ABORT, 'rows of policy_log are never changed'); END;
CREATE TRIGGER policy_log_no_delete BEFORE DELETE ON policy_log BEGIN SELECT RAISE(ABORT, 'rows of policy_log are never changed'); END;
CREATE TRIGGER charge_no_update BEFORE UPDATE ON charge BEGIN SELECT RAISE(ABORT, 'rows of charge are never changed'); END;
CREATE TRIGGER charge_no_delete BEFORE DELETE ON charge BEGIN SELECT RAISE(ABORT, 'rows of charge are never changed'); END;
CREATE TRIGGER closed_charge_no_update BEFORE UPDATE ON closed_charge BEGIN SELECT RAISE(ABORT, 'rows of closed_charge are never changed'); END;
CREATE TRIGGER closed_charge_no_delete BEFORE DELETE ON closed_charge BEGIN SELECT RAISE(ABORT, 'rows of closed_charge are never changed'); END;
CREATE TRIGGER frame_no_update BEFORE UPDATE ON frame BEGIN SELECT RAISE(ABORT, 'rows of frame are never changed'); END;
CREATE TRIGGER frame_no_delete BEFORE DELETE ON frame BEGIN SELECT RAISE(ABORT, 'rows of frame are never changed'); END;
CREATE TRIGGER key_chunk_no_update BEFORE UPDATE ON key_chunk BEGIN SELECT RAISE(ABORT, 'rows of key_chunk are never changed'); END;
CREATE TRIGGER key_chunk_no_delete BEFORE DELETE ON key_chunk BEGIN SELECT RAISE(ABORT, 'rows of key_chunk are never changed'); END;
CREATE TRIGGER release_no_update BEFORE UPDATE ON release BEGIN SELECT RAISE(ABORT, 'rows of release are never changed'); END;
CREATE TRIGGER release_no_delete BEFORE DELETE ON release BEGIN SELECT RAISE(ABORT, 'rows of release are never changed'); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('policy_log',4);
INSERT INTO "sqlite_sequence" VALUES('charge',2);
INSERT INTO "sqlite_sequence" VALUES('release',1);
COMMIT;
