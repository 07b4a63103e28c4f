-- Private aggregate functions, as DuckDB macros.
--
-- Inside a private query (dpsql's sql(), dp_query) dpsql itself answers dp_count, dp_sum and dp_avg. Run anywhere else
-- they would be plain aggregates without bounds or noise, so each of these macros fails and says what to write; they are
-- aggregates themselves, so that they fail over an empty table too. DuckDB allows neither DISTINCT nor FILTER on a macro,
-- and says so before the macro can.
-- Load them into a database with:  .read dp_functions.sql

CREATE OR REPLACE MACRO dp_count() AS
    CASE WHEN count(*) >= 0 THEN error('dp_count() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_count(*) FROM visits GROUP BY city $$)')::BIGINT END,
(value) AS
    CASE WHEN count(*) >= 0 THEN error('dp_count() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_count(*) FROM visits GROUP BY city $$)')::BIGINT END;

CREATE OR REPLACE MACRO dp_sum(value, low, high) AS
    CASE WHEN count(*) >= 0 THEN error('dp_sum() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_sum(cost, 0, 500) FROM visits GROUP BY city $$)')::DOUBLE END;

CREATE OR REPLACE MACRO dp_avg(value, low, high) AS
    CASE WHEN count(*) >= 0 THEN error('dp_avg() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_avg(cost, 0, 500) FROM visits GROUP BY city $$)')::DOUBLE END;

CREATE OR REPLACE MACRO dp_interval_low(alias) AS
    error('dp_interval_low() takes the alias of an aggregate inside a private query: SELECT count(*) AS n, dp_interval_low(n) ...')::DOUBLE;

CREATE OR REPLACE MACRO dp_interval_high(alias) AS
    error('dp_interval_high() takes the alias of an aggregate inside a private query: SELECT count(*) AS n, dp_interval_high(n) ...')::DOUBLE;

CREATE OR REPLACE MACRO dp_unbounded(alias) AS
    error('dp_unbounded() takes the alias of an aggregate inside a private query: SELECT count(*) AS n, dp_unbounded(n) ...')::DOUBLE;

CREATE OR REPLACE MACRO dp_unbounded_low(alias) AS
    error('dp_unbounded_low() takes the alias of an aggregate inside a private query: SELECT count(*) AS n, dp_unbounded_low(n) ...')::DOUBLE;

CREATE OR REPLACE MACRO dp_unbounded_high(alias) AS
    error('dp_unbounded_high() takes the alias of an aggregate inside a private query: SELECT count(*) AS n, dp_unbounded_high(n) ...')::DOUBLE;

CREATE OR REPLACE MACRO dp_within_target(alias) AS
    error('dp_within_target() takes the alias of an aggregate inside a private query: SELECT count(*) AS n, dp_within_target(n) ...')::BOOLEAN;
