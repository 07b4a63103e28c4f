-- Private aggregate functions, as DuckDB macros.
--
-- Inside a private query (dpsql's sql(), dp_query) dpsql itself answers dp_count, dp_sum, dp_avg and the others. Run
-- anywhere else they would be plain aggregates without bounds or noise, so each of these macros fails and says what to
-- write; they are aggregates themselves, so that they fail over an empty table too. DuckDB allows neither DISTINCT nor
-- FILTER on a macro, and says so before the macro can.
-- Load them into a database with:  .read dp_functions.sql

CREATE OR REPLACE MACRO dp_count() AS
    CASE WHEN count(*) >= 0 THEN error('dp_count() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_count(*) FROM visits GROUP BY city $$)')::BIGINT END,
(value) AS
    CASE WHEN count(*) >= 0 THEN error('dp_count() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_count(*) FROM visits GROUP BY city $$)')::BIGINT END;

CREATE OR REPLACE MACRO dp_sum(value, low, high) AS
    CASE WHEN count(*) >= 0 THEN error('dp_sum() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_sum(cost, 0, 500) FROM visits GROUP BY city $$)')::DOUBLE END;

CREATE OR REPLACE MACRO dp_avg(value, low, high) AS
    CASE WHEN count(*) >= 0 THEN error('dp_avg() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_avg(cost, 0, 500) FROM visits GROUP BY city $$)')::DOUBLE END;

CREATE OR REPLACE MACRO dp_count_if(condition) AS
    CASE WHEN count(*) >= 0 THEN error('dp_count_if() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_count_if(cost > 100) FROM visits GROUP BY city $$)')::BIGINT END;

CREATE OR REPLACE MACRO dp_var_pop(value, low, high) AS
    CASE WHEN count(*) >= 0 THEN error('dp_var_pop() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_var_pop(cost, 0, 500) FROM visits GROUP BY city $$)')::DOUBLE END;

CREATE OR REPLACE MACRO dp_var_samp(value, low, high) AS
    CASE WHEN count(*) >= 0 THEN error('dp_var_samp() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_var_samp(cost, 0, 500) FROM visits GROUP BY city $$)')::DOUBLE END;

CREATE OR REPLACE MACRO dp_stddev_pop(value, low, high) AS
    CASE WHEN count(*) >= 0 THEN error('dp_stddev_pop() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_stddev_pop(cost, 0, 500) FROM visits GROUP BY city $$)')::DOUBLE END;

CREATE OR REPLACE MACRO dp_stddev_samp(value, low, high) AS
    CASE WHEN count(*) >= 0 THEN error('dp_stddev_samp() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_stddev_samp(cost, 0, 500) FROM visits GROUP BY city $$)')::DOUBLE END;

CREATE OR REPLACE MACRO dp_median(value, low, high) AS
    CASE WHEN count(*) >= 0 THEN error('dp_median() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_median(cost, 0, 500) FROM visits GROUP BY city $$)')::DOUBLE END;

CREATE OR REPLACE MACRO dp_quantile(value, share, low, high) AS
    CASE WHEN count(*) >= 0 THEN error('dp_quantile() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_quantile(cost, 0.9, 0, 500) FROM visits GROUP BY city $$)')::DOUBLE END;

CREATE OR REPLACE MACRO dp_quantile_cont(value, share, low, high) AS
    CASE WHEN count(*) >= 0 THEN error('dp_quantile_cont() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_quantile_cont(cost, 0.9, 0, 500) FROM visits GROUP BY city $$)')::DOUBLE END;

CREATE OR REPLACE MACRO dp_quantile_disc(value, share, low, high) AS
    CASE WHEN count(*) >= 0 THEN error('dp_quantile_disc() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_quantile_disc(cost, 0.9, 0, 500) FROM visits GROUP BY city $$)')::DOUBLE END;

CREATE OR REPLACE MACRO dp_approx_quantile(value, share, low, high) AS
    CASE WHEN count(*) >= 0 THEN error('dp_approx_quantile() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_approx_quantile(cost, 0.9, 0, 500) FROM visits GROUP BY city $$)')::DOUBLE END;

CREATE OR REPLACE MACRO dp_bool_or(condition) AS
    CASE WHEN count(*) >= 0 THEN error('dp_bool_or() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_bool_or(cost > 100) FROM visits GROUP BY city $$)')::BOOLEAN END;

CREATE OR REPLACE MACRO dp_bool_and(condition) AS
    CASE WHEN count(*) >= 0 THEN error('dp_bool_and() is private: run it through dpsql, as in FROM dp_query($$ SELECT city, dp_bool_and(cost > 100) FROM visits GROUP BY city $$)')::BOOLEAN END;

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
