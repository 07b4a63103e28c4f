/* The aggregate that says where a unit's choice of groups ends.
 *
 * dpsql_last_C(most INTEGER, priority UINTEGER) -> UINTEGER
 *
 *   Of the `most` least priorities the largest; most <= C, the same in all rows. 2**32 - 1 where there are no more
 *   priorities than that, so that all are at most the result. NULL where the next one is equal to it, so that priorities
 *   alone do not tell which groups are kept. Called over a unit's groups with GROUP BY unit it chooses them in one pass and
 *   constant state: kept are those with a priority of at most the result (tests/unit/bound/test_formulations.py).
 *
 * The state is the `most` + 1 least priorities, which do not depend on the order of rows or threads.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "native.h"

/* In step with dpsql/bound/formulations.py, which says what is asked of the library. */
static const uint32_t CAPACITIES[] = {1, 2, 4, 8, 16, 32, 64};

enum { MOST_CAPACITIES = sizeof(CAPACITIES) / sizeof(CAPACITIES[0]) };
enum { AHEAD = 12, LINE = 64 }; /* rows, bytes */

/* Followed by one priority more than the capacity. Most states are to lie in one line of memory. */
typedef struct {
	uint8_t most;
	uint8_t held;
	uint8_t largest; /* place of the largest priority */
	uint8_t unused;
} State;

static inline uint32_t *priorities(State *state) {
	return (uint32_t *)(state + 1);
}

static idx_t state_size(duckdb_function_info info) {
	const uint32_t *capacity = duckdb_aggregate_function_get_extra_info(info);
	return sizeof(State) + (*capacity + 1) * sizeof(uint32_t);
}

static void state_init(duckdb_function_info info, duckdb_aggregate_state state) {
	(void)info;
	memset(state, 0, sizeof(State));
}

static inline void add(State *state, uint32_t priority) {
	uint32_t *held = priorities(state);
	if (state->held <= state->most) {
		if (!state->held || held[state->largest] < priority) {
			state->largest = state->held;
		}
		held[state->held++] = priority;
		return;
	}
	if (held[state->largest] <= priority) {
		return;
	}
	held[state->largest] = priority;
	uint8_t largest = 0;
	for (uint8_t i = 1; i < state->held; i++) {
		largest = held[largest] < held[i] ? i : largest;
	}
	state->largest = largest;
}

static const char SEVERAL[] = "the number of groups to keep must be the same in all rows";

/* False where the state holds priorities under another number, for which its places are not made. */
static inline bool set_most(State *state, uint32_t most) {
	if (state->held && state->most != most) {
		return false;
	}
	state->most = (uint8_t)most;
	return true;
}

static inline bool is_valid(uint64_t *validity, idx_t row) {
	return !validity || (validity[row / 64] >> (row % 64) & 1);
}

static void update(duckdb_function_info info, duckdb_data_chunk input, duckdb_aggregate_state *states) {
	const uint32_t capacity = *(const uint32_t *)duckdb_aggregate_function_get_extra_info(info);
	duckdb_vector of_most = duckdb_data_chunk_get_vector(input, 0), of_priority = duckdb_data_chunk_get_vector(input, 1);
	const int32_t *most = duckdb_vector_get_data(of_most);
	const uint32_t *priority = duckdb_vector_get_data(of_priority);
	uint64_t *known[] = {duckdb_vector_get_validity(of_most), duckdb_vector_get_validity(of_priority)};
	const idx_t rows = duckdb_data_chunk_get_size(input);
	const size_t size = sizeof(State) + (capacity + 1) * sizeof(uint32_t);
	for (idx_t row = 0; row < rows; row++) {
		/* states lie far apart, and waiting for each in turn would be most of the time */
		if (row + AHEAD < rows) {
			const char *ahead = (const char *)states[row + AHEAD];
			for (size_t line = 0; line < size; line += LINE) {
				__builtin_prefetch(ahead + line, 1);
			}
		}
		if (!is_valid(known[0], row) || !is_valid(known[1], row)) {
			continue;
		}
		if (most[row] < 1 || (uint32_t)most[row] > capacity) {
			duckdb_aggregate_function_set_error(info, "the number of groups to keep is out of range");
			return;
		}
		State *state = (State *)states[row];
		if (!set_most(state, (uint32_t)most[row])) {
			duckdb_aggregate_function_set_error(info, SEVERAL);
			return;
		}
		add(state, priority[row]);
	}
}

static void combine(duckdb_function_info info, duckdb_aggregate_state *sources, duckdb_aggregate_state *targets,
                    idx_t count) {
	for (idx_t i = 0; i < count; i++) {
		State *source = (State *)sources[i], *target = (State *)targets[i];
		if (source->held && !set_most(target, source->most)) {
			duckdb_aggregate_function_set_error(info, SEVERAL);
			return;
		}
		for (uint8_t from = 0; from < source->held; from++) {
			add(target, priorities(source)[from]);
		}
	}
}

static void finalize(duckdb_function_info info, duckdb_aggregate_state *states, duckdb_vector result, idx_t count,
                     idx_t offset) {
	(void)info;
	uint32_t *last = duckdb_vector_get_data(result);
	duckdb_vector_ensure_validity_writable(result);
	uint64_t *known = duckdb_vector_get_validity(result);
	for (idx_t i = 0; i < count; i++) {
		State *state = (State *)states[i];
		const uint32_t *held = priorities(state);
		if (state->held <= state->most) {
			last[offset + i] = UINT32_MAX;
			continue;
		}
		/* the largest one is turned away, and the one before it is the last that is kept */
		uint32_t before = 0;
		for (uint8_t j = 0; j < state->held; j++) {
			if (j != state->largest && before < held[j]) {
				before = held[j];
			}
		}
		if (before == held[state->largest]) {
			duckdb_validity_set_row_invalid(known, offset + i);
		}
		last[offset + i] = before;
	}
}

static duckdb_state add_overload(duckdb_aggregate_function_set set, const char *name, const uint32_t *capacity) {
	duckdb_aggregate_function function = duckdb_create_aggregate_function();
	duckdb_logical_type integer = duckdb_create_logical_type(DUCKDB_TYPE_INTEGER);
	duckdb_logical_type uinteger = duckdb_create_logical_type(DUCKDB_TYPE_UINTEGER);
	duckdb_aggregate_function_set_name(function, name);
	duckdb_aggregate_function_add_parameter(function, integer);
	duckdb_aggregate_function_add_parameter(function, uinteger);
	duckdb_aggregate_function_set_return_type(function, uinteger);
	duckdb_destroy_logical_type(&integer);
	duckdb_destroy_logical_type(&uinteger);
	duckdb_aggregate_function_set_functions(function, state_size, state_init, update, combine, finalize);
	duckdb_aggregate_function_set_special_handling(function);
	duckdb_aggregate_function_set_extra_info(function, (void *)capacity, NULL);
	const duckdb_state added = duckdb_add_aggregate_function_to_set(set, function);
	duckdb_destroy_aggregate_function(&function);
	return added;
}

bool register_last(duckdb_connection connection) {
	for (uint32_t i = 0; i < MOST_CAPACITIES; i++) {
		char name[32];
		snprintf(name, sizeof(name), "dpsql_last_%u", CAPACITIES[i]);
		duckdb_aggregate_function_set set = duckdb_create_aggregate_function_set(name);
		const bool whole = add_overload(set, name, &CAPACITIES[i]) == DuckDBSuccess;
		if (!finish_set(connection, set, whole)) {
			return false;
		}
	}
	return true;
}
