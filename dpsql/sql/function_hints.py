"""Hints for functions without a private form, one row for each: the text to write in place of a call.

The table is read only if a call is refused (`function_refusals`). A hint is text that can be pasted, as in "Write
count(DISTINCT {0}).", or names who can help. In it stand for parts of the call:

- ``{0}``, ``{1}``, …: the arguments; ``{o0}``: an argument, in parentheses if it is more than one term;
- ``{part}``: the first argument as a date part; ``{form}``: the second one as a format of strftime;
- ``{joined}``: what a format as the first one joins; ``{name}``: the function; ``{plain}``: its name without ``dp_``;
- ``{bounds}``: bounds of one value that the call names, or has after its value; ``{pair}``: those of two values;
- ``{filter}``: its FILTER; ``{also}``: what continues a condition with that of its FILTER.

A function that gets a private form leaves the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hint:
    """One row: functions by their names, the hint, and a call that the hint is tried on.

    Attributes:
        names: in small letters, separated by spaces; ``*`` stands for any letters, ``name/2`` has two arguments.
        hint: a sentence or two.
        example: a call.
        message: the reason; ``{}`` is the call.

    """

    names: str
    hint: str
    example: str
    message: str = "{} has no private form."


_NO_SUCH = "DuckDB has no function {}."
_NO_FORM = "there is no {}."
_GROUPS = "Write {0}, count(*){filter} with GROUP BY {0}."
_DECIDES = "{} has no private form: one row decides it."
LIST_OF_ROWS = "List the rows, as in JOIN (VALUES (DATE '2024-01-31')) AS c(m), or join a public table of them."
"""Hint for rows of a series."""
_COLUMN = "Ask the curator for a column of it."

AGGREGATE_HINTS: tuple[Hint, ...] = (
    Hint(
        "min",
        "Write quantile_cont({0}, 0.01{bounds}){filter}, or add OPTIONS (extremes = 'quantile').",
        "min(cost)",
        _DECIDES,
    ),
    Hint(
        "max",
        "Write quantile_cont({0}, 0.99{bounds}){filter}, or add OPTIONS (extremes = 'quantile').",
        "max(cost)",
        _DECIDES,
    ),
    Hint("dp_min", "Write quantile_cont({0}, 0.01{bounds}){filter}.", "dp_min(cost, 0, 9)", _NO_FORM),
    Hint("dp_max", "Write quantile_cont({0}, 0.99{bounds}){filter}.", "dp_max(cost, 0, 9)", _NO_FORM),
    Hint("dp_geomean dp_geometric_mean", "Write {plain}({0}{bounds}){filter}.", "dp_geomean(cost, 1, 9)", _NO_FORM),
    Hint(
        "dp_corr dp_covar_pop dp_covar_samp dp_regr_slope dp_regr_intercept dp_regr_r2",
        "Write {plain}({0}, {1}{pair}){filter}.",
        "dp_corr(cost, n, 0, 9, 0, 5)",
        _NO_FORM,
    ),
    Hint(
        "dp_approx_count_distinct dp_mode dp_histogram",
        "Write {plain}({0}){filter}.",
        "dp_approx_count_distinct(city)",
        _NO_FORM,
    ),
    Hint("dp_count_distinct", "Write count(DISTINCT {0}){filter}.", "dp_count_distinct(city)", _NO_FORM),
    Hint("covar covariance", "Write covar_samp({0}, {1}){filter}.", "covar(cost, n)", _NO_SUCH),
    Hint("correlation correl pearson", "Write corr({0}, {1}){filter}.", "correlation(cost, n)", _NO_SUCH),
    Hint(
        "arg_min arg_min_null arg_min_nulls_last argmin min_by",
        "Write {0}, quantile_cont({1}, 0.01){filter} with GROUP BY {0}.",
        "arg_min(city, cost)",
    ),
    Hint(
        "arg_max arg_max_null arg_max_nulls_last argmax max_by",
        "Write {0}, quantile_cont({1}, 0.99){filter} with GROUP BY {0}.",
        "arg_max(city, cost)",
    ),
    Hint("any_value arbitrary first last", _GROUPS, "first(city)"),
    Hint("first_value last_value", _GROUPS, "first_value(city)"),
    Hint("nth_value", _GROUPS, "nth_value(city, 2)"),
    Hint(
        "approx_top_k approx_top_count topk top_k",
        "Write {0}, count(*){filter} with GROUP BY {0} ORDER BY count(*){filter} DESC LIMIT {1}.",
        "approx_top_k(city, 3)",
    ),
    Hint("mode/1", _GROUPS, "mode() WITHIN GROUP (ORDER BY city)"),
    Hint("dp_mode", _GROUPS, "dp_mode(city)", "{} has no bounds: write mode of public keys."),
    Hint("dp_histogram", _GROUPS, "dp_histogram(city)", "{} has no bounds: write histogram of public keys."),
    Hint("histogram/3", _GROUPS, "histogram(city, 1, 2)", "{} takes a value, and bins."),
    Hint("histogram_exact", _GROUPS, "histogram_exact(city, [1, 2])"),
    Hint("list array_agg collect_list grouparray json_agg jsonb_agg json_group_array", _GROUPS, "list(city)"),
    Hint("string_agg group_concat listagg wm_concat xmlagg", _GROUPS, "string_agg(city, ', ')"),
    Hint("collect_set array_unique_agg array_concat_agg variant_group_array", _GROUPS, "collect_set(city)"),
    Hint(
        "variant_group_object json_group_object json_object_agg json_objectagg object_agg map_agg",
        "Write {0}, {1}, count(*){filter} with GROUP BY {0}, {1}.",
        "variant_group_object(city, code)",
    ),
    Hint("json_group_structure", _GROUPS, "json_group_structure(city)"),
    Hint("lttb", "Write {0}, avg({1}){filter} with GROUP BY {0}.", "lttb(day, cost, 10)"),
    Hint("bit_and", "Write bool_and(({o0} & 1) = 1){filter}, once for each bit.", "bit_and(n)"),
    Hint("bit_or bitstring_agg", "Write bool_or(({o0} & 1) = 1){filter}, once for each bit.", "bit_or(n)"),
    Hint("bit_xor", _GROUPS, "bit_xor(n)"),
    Hint("count_star", "Write count(*){filter}.", "count_star()"),
    Hint("favg decimal_average average", "Write avg({0}){filter}.", "favg(cost)"),
    Hint("fsum kahan_sum sumkahan sum_no_overflow total", "Write sum({0}){filter}.", "fsum(cost)"),
    Hint("combine_aggr", "Write sum({0}){filter} if it adds, or the aggregate that it combines.", "combine_aggr(n)"),
    Hint("product", "Write exp(sum(ln({0})){filter}), for values above 0.", "product(cost)"),
    Hint("wavg weighted_avg", "Write sum({o0} * {o1}){filter} / sum({1}){filter}.", "wavg(cost, n)"),
    Hint("sem", "Write stddev_pop({0}){filter} / sqrt(count({0}){filter}).", "sem(cost)"),
    Hint(
        "mad",
        "Write (quantile_cont({0}, 0.75){filter} - quantile_cont({0}, 0.25){filter}) / 2, near it if symmetric.",
        "mad(cost)",
    ),
    Hint("iqr", "Write quantile_cont({0}, 0.75){filter} - quantile_cont({0}, 0.25){filter}.", "iqr(cost)", _NO_SUCH),
    Hint(
        "skewness",
        "Write 3 * (avg({0}){filter} - median({0}){filter}) / stddev_pop({0}){filter}, Pearson's measure.",
        "skewness(cost)",
    ),
    Hint(
        "kurtosis kurtosis_pop",
        "Write quantile_cont({0}, [0.01, 0.25, 0.75, 0.99]){filter}: tails beside quartiles.",
        "kurtosis(cost)",
    ),
    Hint("entropy", "Write {0}, count(*){filter} with GROUP BY {0}, and compute it from these.", "entropy(city)"),
    Hint("regr_avgx", "Write avg({1}) FILTER (WHERE {0} IS NOT NULL{also}).", "regr_avgx(n, cost)"),
    Hint("regr_avgy", "Write avg({0}) FILTER (WHERE {1} IS NOT NULL{also}).", "regr_avgy(cost, n)"),
    Hint("regr_count", "Write count({0}) FILTER (WHERE {1} IS NOT NULL{also}).", "regr_count(cost, n)"),
    Hint(
        "regr_sxx",
        "Write var_pop({1}) FILTER (WHERE {0} IS NOT NULL{also}) * count({1}) FILTER (WHERE {0} IS NOT NULL{also}).",
        "regr_sxx(n, cost)",
    ),
    Hint(
        "regr_syy",
        "Write var_pop({0}) FILTER (WHERE {1} IS NOT NULL{also}) * count({0}) FILTER (WHERE {1} IS NOT NULL{also}).",
        "regr_syy(cost, n)",
    ),
    Hint(
        "reservoir_quantile percentile_approx approx_percentile percentile",
        "Write quantile_cont({0}, {1}){filter}.",
        "reservoir_quantile(cost, 0.9)",
    ),
    Hint(
        "percentile_cont/2 percentile_disc/2",
        "Write quantile_cont({0}, {1}){filter}.",
        "percentile_cont(cost, 0.5)",
        "{} goes with WITHIN GROUP (ORDER BY …).",
    ),
    Hint(
        "percentile_cont percentile_disc",
        "Write quantile_cont({0}, 0.5){filter}.",
        "percentile_cont(cost)",
        "{} takes a share, and one value in WITHIN GROUP (ORDER BY …).",
    ),
    Hint(
        "quantile_cont/3 quantile_disc/3 quantile/3",
        "Write {name}({0}, {2}){filter}.",
        "quantile_disc(0.5) WITHIN GROUP (ORDER BY cost, n)",
        "{} takes one value in WITHIN GROUP (ORDER BY …).",
    ),
    Hint("approx_median median_approx", "Write median({0}){filter}.", "approx_median(cost)", _NO_SUCH),
    Hint(
        "hll ndv uniq uniqexact count_distinct countdistinct nunique",
        "Write count(DISTINCT {0}){filter}.",
        "ndv(city)",
    ),
    Hint(
        "approx_count_distinct/2",
        "Write count(DISTINCT concat({0}, ' ', {1})){filter}.",
        "approx_count_distinct(city, code)",
        "{} takes one value.",
    ),
    Hint("sumif sum_if", "Write sum({0}) FILTER (WHERE {1}{also}).", "sumif(cost, n > 3)", _NO_SUCH),
    Hint("avgif avg_if averageif", "Write avg({0}) FILTER (WHERE {1}{also}).", "avgif(cost, n > 3)", _NO_SUCH),
    Hint("stddevsamp", "Write stddev_samp({0}){filter}.", "stddevsamp(cost)", _NO_SUCH),
    Hint("stdevp stddevpop", "Write stddev_pop({0}){filter}.", "stdevp(cost)", _NO_SUCH),
    Hint("var varsamp", "Write var_samp({0}){filter}.", "var(cost)", _NO_SUCH),
    Hint("varp varpop", "Write var_pop({0}){filter}.", "varp(cost)", _NO_SUCH),
    Hint("every", "Write bool_and({0}){filter}.", "every(n > 3)", _NO_SUCH),
    Hint(
        "regr_sxy",
        "Write covar_pop({0}, {1}){filter} * count({0}) FILTER (WHERE {1} IS NOT NULL{also}).",
        "regr_sxy(cost, n)",
    ),
)
"""Rows of aggregates: those of DuckDB, and names that other databases have."""

_EFFECT = "{} does more than compute a value."
_SESSION = "{} is about the session, not about rows."
_RANDOM = "{} differs on each run."
_LISTS = "{} is of lists, and a row has none here."
_LEAVE = "Leave it out."

ROW_HINTS: tuple[Hint, ...] = (
    # dates
    Hint(
        "strptime try_strptime str_to_date parse_date parse_timestamp parse_datetime to_date try_to_date "
        "to_timestamp/2 try_to_timestamp",
        "Write TRY_CAST({0} AS TIMESTAMP) for ISO texts, or ask the curator for a column.",
        "strptime(code, '%Y-%m-%d')",
    ),
    Hint(
        "to_char date_format format_date time_format",
        "Write strftime({0}, '{form}').", "to_char(day, 'YYYY-MM-DD')", _NO_SUCH,
    ),
    Hint("dateadd timestampadd", "Write {o2} + INTERVAL {1} {part}.", "dateadd('month', 1, day)", _NO_SUCH),
    Hint("add_months", "Write {o0} + INTERVAL {1} MONTH.", "add_months(day, 1)", _NO_SUCH),
    Hint("months_between", "Write date_diff('month', {1}, {0}).", "months_between(day, DATE '2024-01-01')", _NO_SUCH),
    Hint(
        "timestampdiff/2",
        "Write date_diff('day', {1}, {0}).", "timestampdiff(day, DATE '2024-01-01')",
    ),
    Hint(
        "timestampdiff timestamp_diff datetime_diff",
        "Write date_diff('{part}', {1}, {2}).", "timestampdiff('day', day, ts)", _NO_SUCH,
    ),
    Hint("datepart", "Write date_part('{part}', {1}).", "datepart('year', day)"),
    Hint("datesub", "Write date_sub('{part}', {1}, {2}).", "datesub('day', day, ts)"),
    Hint("datename", "Write monthname({1}), dayname({1}) or strftime({1}, '%Y').", "datename('month', day)", _NO_SUCH),
    Hint("eomonth", "Write last_day({0}).", "eomonth(day)", _NO_SUCH),
    Hint("days_in_month", "Write day(last_day({0})).", "days_in_month(day)"),
    Hint(
        "make_timestamp* make_time",
        "Write make_date({0}, {1}, {2}) for the day.", "make_timestamp(n, 1, 1, 0, 0, 0)",
    ),
    Hint("getdate sysdate curdate getutcdate", "Write today().", "getdate()", _NO_SUCH),
    Hint(
        "transaction_timestamp current_localtimestamp get_current_time current_localtime systimestamp sysdatetime "
        "localtimestamp utc_timestamp",
        "Write now().",
        "transaction_timestamp()",
    ),
    Hint("unix_timestamp to_unixtime", "Write epoch({0}).", "unix_timestamp(ts)", _NO_SUCH),
    Hint("epoch_ms", "Write epoch({0}) * 1000.", "epoch_ms(ts)"),
    Hint("epoch_us", "Write epoch({0}) * 1000000.", "epoch_us(ts)"),
    Hint("epoch_ns", "Write epoch({0}) * 1000000000.", "epoch_ns(ts)"),
    Hint(
        "to_timestamp from_unixtime",
        "Write DATE '1970-01-01' + CAST(floor({o0} / 86400) AS INTEGER) for the day.",
        "to_timestamp(n)",
    ),
    Hint("millisecond microsecond", "Write date_part('{name}', {0}).", "millisecond(ts)"),
    Hint("nanosecond", "Write date_part('microsecond', {0}) * 1000.", "nanosecond(ts)"),
    Hint("millennium", "Write CAST(floor((year({0}) + 999) / 1000) AS INTEGER).", "millennium(day)"),
    Hint("era", "Write if(year({0}) > 0, 1, 0).", "era(day)"),
    Hint("julian", "Write date_diff('day', DATE '1970-01-01', {0}) + 2440588.", "julian(day)"),
    Hint("ago", "Write now() - {0}.", "ago(INTERVAL 1 DAY)"),
    Hint("age/1", "Write date_part('year', age({0})).", "age(day)"),
    Hint("age", "Write date_part('year', age({0}, {1})).", "age(ts, TIMESTAMP '2024-01-01')"),
    Hint("to_days", "Write INTERVAL {0} DAY, a number that is added to a date.", "to_days(3)"),
    Hint("to_weeks", "Write INTERVAL {0} WEEK, a number that is added to a date.", "to_weeks(3)"),
    Hint("to_months", "Write INTERVAL {0} MONTH, a number that is added to a date.", "to_months(3)"),
    Hint("to_quarters", "Write INTERVAL {0} QUARTER, a number that is added to a date.", "to_quarters(3)"),
    Hint("to_years", "Write INTERVAL {0} YEAR, a number that is added to a date.", "to_years(3)"),
    Hint("to_decades", "Write INTERVAL {0} DECADE, a number that is added to a date.", "to_decades(3)"),
    Hint("to_centuries", "Write INTERVAL {0} CENTURY, a number that is added to a date.", "to_centuries(3)"),
    Hint("to_hours", "Write INTERVAL {0} HOUR, a number that is added to a date.", "to_hours(3)"),
    Hint("to_minutes", "Write INTERVAL {0} MINUTE, a number that is added to a date.", "to_minutes(3)"),
    Hint("to_seconds", "Write INTERVAL {0} SECOND, a number that is added to a date.", "to_seconds(3)"),
    Hint("isdate", "Write TRY_CAST({0} AS DATE) IS NOT NULL.", "isdate(code)", _NO_SUCH),
    # numbers
    Hint("isnumeric is_numeric", "Write TRY_CAST({0} AS DOUBLE) IS NOT NULL.", "isnumeric(code)", _NO_SUCH),
    Hint("to_number try_to_number", "Write TRY_CAST({0} AS DOUBLE).", "to_number(code)", _NO_SUCH),
    Hint("square", "Write {o0} * {o0}.", "square(cost)", _NO_SUCH),
    Hint("add", "Write {o0} + {o1}.", "add(cost, n)"),
    Hint("subtract", "Write {o0} - {o1}.", "subtract(cost, n)"),
    Hint("multiply", "Write {o0} * {o1}.", "multiply(cost, n)"),
    Hint("divide", "Write {o0} // {o1}.", "divide(n, 3)"),
    Hint(
        "decimal_division div0 safe_divide try_divide",
        "Write {o0} / {o1}; NULL if it divides by 0.", "div0(cost, n)",
    ),
    Hint("fdiv", "Write floor({o0} / {o1}).", "fdiv(cost, 3)"),
    Hint("fmod", "Write mod({0}, {1}).", "fmod(n, 3)"),
    Hint("even", "Write sign({0}) * 2 * ceil(abs({0}) / 2).", "even(cost)"),
    Hint("round_even roundbankers", "Write round({0}, {1}).", "round_even(cost, 1)"),
    Hint("signbit", "Write {o0} < 0.", "signbit(cost)"),
    Hint("asin", "Write atan2({0}, sqrt(1 - {o0} * {o0})).", "asin(cost)"),
    Hint("acos", "Write atan2(sqrt(1 - {o0} * {o0}), {0}).", "acos(cost)"),
    Hint("sinh", "Write (exp({0}) - exp(-{o0})) / 2.", "sinh(cost)"),
    Hint("cosh", "Write (exp({0}) + exp(-{o0})) / 2.", "cosh(cost)"),
    Hint("tanh", "Write 1 - 2 / (exp(2 * {o0}) + 1).", "tanh(cost)"),
    Hint("asinh", "Write ln({o0} + sqrt({o0} * {o0} + 1)).", "asinh(cost)"),
    Hint("acosh", "Write ln({o0} + sqrt({o0} * {o0} - 1)).", "acosh(cost)"),
    Hint("atanh", "Write ln((1 + {o0}) / (1 - {o0})) / 2.", "atanh(cost)"),
    Hint("cot", "Write 1 / tan({0}).", "cot(cost)"),
    Hint("get_bit", "Write ({o0} & 1) = 1, for the lowest bit.", "get_bit(n, 0)"),
    Hint("nullifzero", "Write nullif({0}, 0).", "nullifzero(n)", _NO_SUCH),
    Hint("zeroifnull", "Write coalesce({0}, 0).", "zeroifnull(n)", _NO_SUCH),
    Hint(
        "width_bucket",
        "Write floor(({o0} - {o1}) * {o3} / ({o2} - {o1})) + 1.",
        "width_bucket(cost, 0, 100, 10)",
        _NO_SUCH,
    ),
    Hint("bucket", "Write floor({o0} / {o1}) * {o1}.", "bucket(cost, 10)", _NO_SUCH),
    # choices
    Hint("isnull/1", "Write {o0} IS NULL.", "isnull(city)", _NO_SUCH),
    Hint("isnull/2", "Write coalesce({0}, {1}).", "isnull(city, 'x')", _NO_SUCH),
    Hint("nvl2", "Write if({o0} IS NOT NULL, {1}, {2}).", "nvl2(city, 1, 0)", _NO_SUCH),
    Hint("choose", "Write CASE {0} WHEN 1 THEN {1} WHEN 2 THEN {2} END.", "choose(n, 'a', 'b')", _NO_SUCH),
    Hint("switch", "Write CASE WHEN {0} THEN {1} END.", "switch(n > 3, 'a')"),
    Hint("constant_or_null", "Write if({o1} IS NULL, NULL, {0}).", "constant_or_null(1, city)"),
    # texts
    Hint("initcap", "Write concat(upper(left({0}, 1)), lower(substring({0}, 2))).", "initcap(city)", _NO_SUCH),
    Hint("concat_ws", "Write concat({1}, {0}, {2}).", "concat_ws('-', city, code)"),
    Hint("format printf", "Write concat({joined}).", "format('{}-{}', city, code)"),
    Hint("lpad", "Write right(concat('0000000000', {0}), {1}).", "lpad(code, 5, '0')"),
    Hint("rpad", "Write left(concat({0}, '          '), {1}).", "rpad(code, 5, ' ')"),
    Hint("repeat replicate", "Write concat({0}, {0}) to repeat it once.", "repeat(city, 2)"),
    Hint(
        "substring_index",
        "Write split_part({0}, {1}, 1) for the first part.", "substring_index(city, '-', 1)", _NO_SUCH,
    ),
    Hint(
        "split string_split str_split string_to_array regexp_split_to_array str_split_regex string_split_regex "
        "regexp_split_to_table",
        "Write split_part({0}, {1}, 1) for the first part.",
        "string_split(city, '-')",
    ),
    Hint("regexp_extract_all", "Write regexp_extract({0}, {1}) for the first part.", "regexp_extract_all(city, 'a+')"),
    Hint("regexp_count regexp_contains", "Write regexp_matches({0}, {1}).", "regexp_contains(city, 'a+')", _NO_SUCH),
    Hint("regexp_substr", "Write regexp_extract({0}, {1}).", "regexp_substr(city, 'a+')", _NO_SUCH),
    Hint("translate", "Write replace({0}, 'a', 'b') for each letter.", "translate(city, 'a', 'b')"),
    Hint("mid", "Write substring({0}, {1}, {2}).", "mid(city, 1, 3)", _NO_SUCH),
    Hint("strleft", "Write left({0}, {1}).", "strleft(city, 3)", _NO_SUCH),
    Hint("strright", "Write right({0}, {1}).", "strright(city, 3)", _NO_SUCH),
    Hint("left_grapheme", "Write left({0}, {1}).", "left_grapheme(city, 3)"),
    Hint("right_grapheme", "Write right({0}, {1}).", "right_grapheme(city, 3)"),
    Hint("substring_grapheme", "Write substring({0}, {1}, {2}).", "substring_grapheme(city, 1, 3)"),
    Hint("length_grapheme", "Write length({0}).", "length_grapheme(city)"),
    Hint("octet_length", "Write strlen({0}).", "octet_length(city)"),
    Hint("bit_length", "Write strlen({0}) * 8.", "bit_length(city)"),
    Hint("unicode ord", "Write ascii({0}).", "unicode(city)"),
    Hint("contains_substr", "Write contains(lower({0}), lower({1})).", "contains_substr(city, 'a')", _NO_SUCH),
    Hint("like_escape", "Write {o0} LIKE {1}.", "like_escape(city, 'a%', '!')"),
    Hint("not_like_escape", "Write {o0} NOT LIKE {1}.", "not_like_escape(city, 'a%', '!')"),
    Hint("ilike_escape", "Write {o0} ILIKE {1}.", "ilike_escape(city, 'a%', '!')"),
    Hint("not_ilike_escape", "Write {o0} NOT ILIKE {1}.", "not_ilike_escape(city, 'a%', '!')"),
    Hint("overlay", "Write concat(left({0}, {2} - 1), {1}, substring({0}, {3} + 1)).", "overlay(city, 'x', 2, 2)"),
    Hint(
        "hash md5* sha1 sha2 sha256 crc32 farm_fingerprint",
        "Write {0} in its place: equal values are one group.",
        "md5(city)",
    ),
    Hint("soundex metaphone difference dmetaphone isjson is_json", _COLUMN, "soundex(city)", _NO_SUCH),
    Hint("enum_code", "Write CAST({0} AS VARCHAR), its value as a text.", "enum_code(city)"),
    # families
    Hint("random rand newid uuid uuidv4 uuidv7 gen_random_uuid", f"{_LEAVE} Every row counts.", "random()", _RANDOM),
    Hint(
        "sleep* pg_sleep setseed nextval currval setval write_log error assert_true getvariable",
        _LEAVE,
        "sleep_ms(1)",
        _EFFECT,
    ),
    Hint(
        "current_* session_user user version txid_current inet_* has_* pg_* col_description obj_description "
        "shobj_description in_search_path get_block_size format_pg_type format_type map_to_pg_oid "
        "map_type_id_to_pg_oid",
        _LEAVE,
        "current_user()",
        _SESSION,
    ),
    Hint("typeof pg_typeof get_type vector_type stats alias", "DESCRIBE shows the types of columns.", "typeof(city)"),
    Hint(
        "range generate_series generate_subscripts sequence",
        "Join a public table of the values.", "range(n)", _LISTS,
    ),
    Hint(
        "list_* array_* map map_* struct_* row element_at flatten cardinality aggregate "
        "grade_up unpivot_list variant_array_length json_array* size",
        _COLUMN,
        "list_sum([1, 2])",
        _LISTS,
    ),
)  # fmt: skip
"""Rows of functions of a row: those of DuckDB, and names that other databases have."""

OTHER_ROW = Hint("*", _COLUMN, "jaccard(city, code)", "{} is not allowed inside a private query.")
"""Row of a function that has none of its own."""
