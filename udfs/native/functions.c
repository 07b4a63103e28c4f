/* What the shell sees: table functions that hand their arguments to the helper, and aggregates that say where they
 * belong.
 *
 * Binding asks for names and types alone: DESCRIBE, EXPLAIN, PREPARE and CREATE VIEW charge nothing. A query is run,
 * and charged, when its rows are asked for.
 */
/* for strdup */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "native.h"

enum { MOST_NAMED = 32 };

static const char NO_TABLE[] = "dpsql's helper sent what is no table";

/* Arguments of a function: how many names in quotes come first, and the names of the others, which take any value.
 * What values make sense is for the helper to say. In step with dpsql (tests/end_to_end/test_shell.py). */
typedef struct {
	const char *name;
	uint32_t positional;
	const char *named[MOST_NAMED];
} Signature;

#define QUERY_OPTIONS                                                                                                  \
	"rho", "epsilon", "delta", "max_groups_contributed", "group_selection_strategy", "min_privacy_units_per_group",     \
	    "privacy_unit_column", "mechanism", "top_k", "sketch_size", "rho_window", "rho_ceiling", "own_threshold",       \
	    "as_of", "refresh", "buckets", "bounding", "other_group", "coverage", "target_half_width", "confidence",            \
	    "max_rho", "max_epsilon", "target_relative_error", "at_least", "extremes", "method"
#define TABLE_RULES                                                                                                    \
	"max_groups_contributed", "max_rows_per_group", "max_rows_norm", "max_rows_per_unit", "default_rho",                \
	    "default_epsilon", "default_delta", "min_privacy_units_per_group", "rho_window", "rho_ceiling", "coverage",           \
	    "time_zone", "version"
#define BUDGET                                                                                                         \
	"epsilon_budget", "delta_budget", "rho_budget", "delta_threshold", "delta_conversion", "composition", "thresholds"

static const Signature signatures[] = {
    {"dp_query", 1, {QUERY_OPTIONS}},
    {"dp_explain", 1, {QUERY_OPTIONS}},
    {"dp_describe", 1, {QUERY_OPTIONS}},
    {"dp_tables", 0, {0}},
    {"dp_budget", 0, {"unit", "analysts"}},
    {"dp_releases", 0, {0}},
    {"dp_policy", 0, {0}},
    {"dp_cascade", 0, {"query_hash"}},
    {"dp_check", 1, {"by", "auto", "plot"}},
    {"dp_receipt", 0, {0}},
    {"dp_unit", 1, {BUDGET, "replace"}},
    {"dp_protect", 1, {"unit", "privacy_unit_column", TABLE_RULES, BUDGET, "separate_people", "replace"}},
    {"dp_link", 2, {"parent", TABLE_RULES, "separate_people", "replace"}},
    {"dp_domain", 2, {"bounds", "keys", "keys_from", "ordered", "replace"}},
    {"dp_public", 1, {"version", "public", "public_by_decision", "readable", "replace"}},
    {"dp_unprotect", 1, {0}},
    {"dp_analyst", 1, {"rho_limit", "budget_part", "replace"}},
    {"dp_new_version", 1, {"version"}},
    {"dp_accept_state", 0, {0}},
    {"dp_server", 1, {"token", "ca_file"}},
};

enum { FUNCTIONS = sizeof(signatures) / sizeof(signatures[0]) };

typedef struct {
	const Signature *signature;
	Helper *helper;
} Function;

/* What binding leaves for running: the request, and the types that were promised. */
typedef struct {
	Bytes request;
	Type *types;
	uint32_t columns;
} Bound;

/* Rows of an answer, a frame each. */
typedef struct {
	Bytes *chunks;
	uint32_t count;
	uint32_t next;
} Rows;

static void free_bound(void *data) {
	Bound *bound = data;
	bytes_free(&bound->request);
	free(bound->types);
	free(bound);
}

static void free_rows(void *data) {
	Rows *rows = data;
	for (uint32_t i = 0; i < rows->count; i++) {
		bytes_free(&rows->chunks[i]);
	}
	free(rows->chunks);
	free(rows);
}

static bool is_number(duckdb_type type) {
	switch (type) {
	case DUCKDB_TYPE_TINYINT:
	case DUCKDB_TYPE_SMALLINT:
	case DUCKDB_TYPE_INTEGER:
	case DUCKDB_TYPE_BIGINT:
	case DUCKDB_TYPE_UTINYINT:
	case DUCKDB_TYPE_USMALLINT:
	case DUCKDB_TYPE_UINTEGER:
	case DUCKDB_TYPE_UBIGINT:
	case DUCKDB_TYPE_HUGEINT:
	case DUCKDB_TYPE_UHUGEINT:
	case DUCKDB_TYPE_FLOAT:
	case DUCKDB_TYPE_DOUBLE:
	case DUCKDB_TYPE_DECIMAL:
		return true;
	default:
		return false;
	}
}

static void put_value(Bytes *bytes, duckdb_value value);

/* A struct as its size, and the name and the value of each member. */
static void put_members(Bytes *bytes, duckdb_value value) {
	const duckdb_logical_type type = duckdb_get_value_type(value); /* the value owns it */
	const idx_t size = duckdb_struct_type_child_count(type);
	put_u32(bytes, (uint32_t)size);
	for (idx_t i = 0; i < size; i++) {
		char *name = duckdb_struct_type_child_name(type, i);
		put_text(bytes, name ? name : "", name ? strlen(name) : 0);
		duckdb_free(name);
		duckdb_value child = duckdb_get_struct_child(value, i);
		put_value(bytes, child);
		duckdb_destroy_value(&child);
	}
}

/* A value as a letter and what follows: n (NULL), l (a list: size and values), o (a struct), b, # and s (truth, number,
 * other, as text). */
static void put_value(Bytes *bytes, duckdb_value value) {
	const duckdb_type type = duckdb_is_null_value(value) ? DUCKDB_TYPE_SQLNULL
	                                                     : duckdb_get_type_id(duckdb_get_value_type(value));
	if (type == DUCKDB_TYPE_SQLNULL) {
		put_u8(bytes, 'n');
		return;
	}
	if (type == DUCKDB_TYPE_LIST) {
		const idx_t size = duckdb_get_list_size(value);
		put_u8(bytes, 'l');
		put_u32(bytes, (uint32_t)size);
		for (idx_t i = 0; i < size; i++) {
			duckdb_value child = duckdb_get_list_child(value, i);
			put_value(bytes, child);
			duckdb_destroy_value(&child);
		}
		return;
	}
	if (type == DUCKDB_TYPE_STRUCT) {
		put_u8(bytes, 'o');
		put_members(bytes, value);
		return;
	}
	char *text = duckdb_get_varchar(value);
	put_u8(bytes, is_number(type) ? '#' : type == DUCKDB_TYPE_BOOLEAN ? 'b' : 's');
	put_text(bytes, text ? text : "", text ? strlen(text) : 0);
	duckdb_free(text);
}

static void put_call(Bytes *request, const Signature *signature, duckdb_bind_info info) {
	put_text(request, signature->name, strlen(signature->name));
	const uint32_t positional = (uint32_t)duckdb_bind_get_parameter_count(info);
	put_u32(request, positional);
	for (uint32_t i = 0; i < positional; i++) {
		duckdb_value value = duckdb_bind_get_parameter(info, i);
		put_value(request, value);
		duckdb_destroy_value(&value);
	}
	for (uint32_t i = 0; i < MOST_NAMED && signature->named[i]; i++) {
		duckdb_value value = duckdb_bind_get_named_parameter(info, signature->named[i]);
		if (value) {
			put_u8(request, 1);
			put_text(request, signature->named[i], strlen(signature->named[i]));
			put_value(request, value);
			duckdb_destroy_value(&value);
		}
	}
	put_u8(request, 0);
}

static char *error_of(const Frame *answer) {
	Reader reader = {answer->body.data, answer->body.size, false};
	return take_text(&reader);
}

/* Promises the columns of a frame S; false where it is none. A fault of the helper must not become one of the shell. */
static bool promise(duckdb_bind_info info, Bound *bound, const Frame *answer) {
	Reader reader = {answer->body.data, answer->body.size, false};
	bound->columns = take_count(&reader, sizeof(uint32_t) + sizeof(Type));
	bound->types = calloc((size_t)bound->columns + 1, sizeof(*bound->types));
	for (uint32_t i = 0; bound->types && i < bound->columns; i++) {
		char *name = take_text(&reader);
		if (name && take_type(&reader, &bound->types[i])) {
			duckdb_logical_type logical = logical_type(bound->types[i]);
			duckdb_bind_add_result_column(info, name, logical);
			duckdb_destroy_logical_type(&logical);
		}
		free(name);
	}
	return bound->types && !reader.failed;
}

static void bind(duckdb_bind_info info) {
	const Function *function = duckdb_bind_get_extra_info(info);
	Bound *bound = calloc(1, sizeof(*bound));
	if (!bound) {
		duckdb_bind_set_error(info, "out of memory");
		return;
	}
	duckdb_bind_set_bind_data(info, bound, free_bound);
	put_call(&bound->request, function->signature, info);
	Frame answer = {0};
	char *error = NULL;
	if (!helper_begin(function->helper)) {
		duckdb_bind_set_error(info, "a private query cannot read what dpsql's functions give");
		return;
	}
	if (helper_ask(function->helper, 'B', &bound->request, &answer, &error)) {
		error = answer.kind == 'E' ? error_of(&answer) : promise(info, bound, &answer) ? NULL : strdup(NO_TABLE);
	}
	helper_end(function->helper);
	if (error) {
		duckdb_bind_set_error(info, error);
	}
	bytes_free(&answer.body);
	free(error);
}

static bool keep_chunk(Rows *rows, Frame *answer) {
	if (!(rows->count & (rows->count + 1))) {
		/* one more than a power of two: room for twice as many */
		Bytes *more = realloc(rows->chunks, 2 * ((size_t)rows->count + 1) * sizeof(*more));
		if (!more) {
			return false;
		}
		rows->chunks = more;
	}
	rows->chunks[rows->count++] = answer->body;
	answer->body = (Bytes) {0};
	return true;
}

/* Runs what was bound and keeps the rows of its answer, in the types that were promised; an error's sentence, or NULL. */
static char *collect(Helper *helper, const Bound *bound, Rows *rows) {
	Frame answer = {0};
	Bytes request = {0};
	char *error = NULL;
	put_u32(&request, bound->columns);
	put_bytes(&request, bound->types, bound->columns * sizeof(*bound->types));
	put_bytes(&request, bound->request.data, bound->request.size);
	bool more = helper_ask(helper, 'R', &request, &answer, &error), kept = true;
	bytes_free(&request);
	/* read to the end in any case: what is left would be taken for the answer to the next request */
	while (more && answer.kind == 'C') {
		kept = kept && keep_chunk(rows, &answer);
		more = helper_next(helper, &answer, &error);
	}
	if (more && answer.kind == 'E') {
		error = error_of(&answer);
	}
	if (!kept && !error) {
		error = strdup("out of memory; the answer is stored, and the same question gives it again for nothing");
	}
	bytes_free(&answer.body);
	return error;
}

static void init(duckdb_init_info info) {
	const Function *function = duckdb_init_get_extra_info(info);
	const Bound *bound = duckdb_init_get_bind_data(info);
	Rows *rows = calloc(1, sizeof(*rows));
	if (!rows) {
		duckdb_init_set_error(info, "out of memory");
		return;
	}
	duckdb_init_set_init_data(info, rows, free_rows);
	duckdb_init_set_max_threads(info, 1);
	char *error = NULL;
	if (helper_begin(function->helper)) {
		error = collect(function->helper, bound, rows);
		helper_end(function->helper);
	} else {
		duckdb_init_set_error(info, "a private query cannot read what dpsql's functions give");
	}
	if (error) {
		duckdb_init_set_error(info, error);
	}
	free(error);
}

static void emit(duckdb_function_info info, duckdb_data_chunk output) {
	const Bound *bound = duckdb_function_get_bind_data(info);
	Rows *rows = duckdb_function_get_init_data(info);
	if (rows->next == rows->count) {
		duckdb_data_chunk_set_size(output, 0);
		return;
	}
	Bytes *chunk = &rows->chunks[rows->next++];
	Reader reader = {chunk->data, chunk->size, false};
	if (!take_chunk(&reader, output, bound->types, bound->columns)) {
		duckdb_function_set_error(info, NO_TABLE);
	}
	bytes_free(chunk);
}

static duckdb_state register_function(duckdb_connection connection, Function *entry) {
	duckdb_table_function function = duckdb_create_table_function();
	duckdb_logical_type any = duckdb_create_logical_type(DUCKDB_TYPE_ANY);
	duckdb_table_function_set_name(function, entry->signature->name);
	for (uint32_t i = 0; i < entry->signature->positional; i++) {
		duckdb_table_function_add_parameter(function, any);
	}
	for (uint32_t i = 0; i < MOST_NAMED && entry->signature->named[i]; i++) {
		duckdb_table_function_add_named_parameter(function, entry->signature->named[i], any);
	}
	duckdb_destroy_logical_type(&any);
	duckdb_table_function_set_extra_info(function, entry, NULL);
	duckdb_table_function_set_bind(function, bind);
	duckdb_table_function_set_init(function, init);
	duckdb_table_function_set_function(function, emit);
	const duckdb_state registered = duckdb_register_table_function(connection, function);
	duckdb_destroy_table_function(&function);
	return registered;
}

bool register_functions(duckdb_connection connection, Helper *helper) {
	/* lives as long as the functions, which live as long as the process */
	Function *entries = calloc(FUNCTIONS, sizeof(*entries));
	bool done = entries != NULL;
	for (uint32_t i = 0; done && i < FUNCTIONS; i++) {
		entries[i] = (Function) {&signatures[i], helper};
		done = register_function(connection, &entries[i]) == DuckDBSuccess;
	}
	return done;
}

/* ---- dp_count, dp_sum, dp_avg outside of a private query ---- */

static const char *const REMINDERS[][2] = {
    {"dp_count", "dp_count() is private and has no number here: write FROM dp_query($$ SELECT city, dp_count(*) FROM "
                 "visits GROUP BY city $$)"},
    {"dp_sum", "dp_sum() is private and has no number here: write FROM dp_query($$ SELECT city, dp_sum(cost, 0, 500) "
               "FROM visits GROUP BY city $$)"},
    {"dp_avg", "dp_avg() is private and has no number here: write FROM dp_query($$ SELECT city, dp_avg(cost, 0, 500) "
               "FROM visits GROUP BY city $$)"},
};

enum { MOST_ARGUMENTS = 3 };

static idx_t no_state(duckdb_function_info info) {
	(void)info;
	return 1;
}

static void start_nothing(duckdb_function_info info, duckdb_aggregate_state state) {
	(void)info;
	(void)state;
}

static void add_nothing(duckdb_function_info info, duckdb_data_chunk input, duckdb_aggregate_state *states) {
	(void)input;
	(void)states;
	duckdb_aggregate_function_set_error(info, duckdb_aggregate_function_get_extra_info(info));
}

static void combine_nothing(duckdb_function_info info, duckdb_aggregate_state *sources, duckdb_aggregate_state *targets,
                            idx_t count) {
	(void)info;
	(void)sources;
	(void)targets;
	(void)count;
}

static void remind(duckdb_function_info info, duckdb_aggregate_state *states, duckdb_vector result, idx_t count,
                   idx_t offset) {
	(void)states;
	(void)result;
	(void)count;
	(void)offset;
	duckdb_aggregate_function_set_error(info, duckdb_aggregate_function_get_extra_info(info));
}

static duckdb_state add_reminder(duckdb_aggregate_function_set set, const char *const reminder[2], uint32_t arguments) {
	duckdb_aggregate_function function = duckdb_create_aggregate_function();
	duckdb_logical_type any = duckdb_create_logical_type(DUCKDB_TYPE_ANY);
	duckdb_logical_type number = duckdb_create_logical_type(DUCKDB_TYPE_DOUBLE);
	duckdb_aggregate_function_set_name(function, reminder[0]);
	for (uint32_t i = 0; i < arguments; i++) {
		duckdb_aggregate_function_add_parameter(function, any);
	}
	duckdb_aggregate_function_set_return_type(function, number);
	duckdb_destroy_logical_type(&number);
	duckdb_destroy_logical_type(&any);
	duckdb_aggregate_function_set_functions(function, no_state, start_nothing, add_nothing, combine_nothing, remind);
	/* rows of NULL are no reason to keep silent */
	duckdb_aggregate_function_set_special_handling(function);
	duckdb_aggregate_function_set_extra_info(function, (void *)reminder[1], NULL);
	const duckdb_state added = duckdb_add_aggregate_function_to_set(set, function);
	duckdb_destroy_aggregate_function(&function);
	return added;
}

bool register_reminders(duckdb_connection connection) {
	for (uint32_t i = 0; i < sizeof(REMINDERS) / sizeof(REMINDERS[0]); i++) {
		duckdb_aggregate_function_set set = duckdb_create_aggregate_function_set(REMINDERS[i][0]);
		bool whole = true;
		for (uint32_t arguments = 0; arguments <= MOST_ARGUMENTS; arguments++) {
			whole = add_reminder(set, REMINDERS[i], arguments) == DuckDBSuccess && whole;
		}
		if (!finish_set(connection, set, whole)) {
			return false;
		}
	}
	return true;
}
