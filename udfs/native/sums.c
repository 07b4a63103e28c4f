/* The aggregate that adds up a column before and after it is clamped.
 *
 * dpsql_sums(clamped BIGINT, whole BIGINT) -> STRUCT(count BIGINT, clamped HUGEINT, whole HUGEINT)
 *
 *   How many values of the first column are not NULL, and the sum of each column's values that are not NULL; 0 if there
 *   are none. Called with GROUP BY unit and key, where most groups have one row, most of its time goes into copying its
 *   state. So the state is small: 32 bytes, where count and two sums of DuckDB have some 56.
 *
 * Sums have 96 bits, so they are exact for up to 2**32 values. The result depends on no order of rows or threads.
 */
#include <string.h>

#include "aggregate.h"

typedef struct {
	uint64_t count;
	uint64_t clamped_low;
	uint64_t whole_low;
	int32_t clamped_high;
	int32_t whole_high;
} State;

_Static_assert(sizeof(State) == 32, "the state has grown");

static idx_t state_size(duckdb_function_info info) {
	(void)info;
	return sizeof(State);
}

static void state_init(duckdb_function_info info, duckdb_aggregate_state state) {
	(void)info;
	memset(state, 0, sizeof(State));
}

/* Added as unsigned numbers, where overflow is defined. */
static inline void add(uint64_t *low, int32_t *high, uint64_t more_low, int32_t more_high) {
	*low += more_low;
	*high = (int32_t)((uint32_t)*high + (uint32_t)more_high + (*low < more_low));
}

static void update(duckdb_function_info info, duckdb_data_chunk input, duckdb_aggregate_state *states) {
	(void)info;
	duckdb_vector of_clamped = duckdb_data_chunk_get_vector(input, 0), of_whole = duckdb_data_chunk_get_vector(input, 1);
	const int64_t *clamped = duckdb_vector_get_data(of_clamped), *whole = duckdb_vector_get_data(of_whole);
	const uint64_t *has_clamped = duckdb_vector_get_validity(of_clamped);
	const uint64_t *has_whole = duckdb_vector_get_validity(of_whole);
	const idx_t rows = duckdb_data_chunk_get_size(input);
	for (idx_t row = 0; row < rows; row++) {
		State *state = (State *)states[row];
		if (is_valid(has_clamped, row)) {
			state->count++;
			add(&state->clamped_low, &state->clamped_high, (uint64_t)clamped[row], clamped[row] < 0 ? -1 : 0);
		}
		if (is_valid(has_whole, row)) {
			add(&state->whole_low, &state->whole_high, (uint64_t)whole[row], whole[row] < 0 ? -1 : 0);
		}
	}
}

static void combine(duckdb_function_info info, duckdb_aggregate_state *sources, duckdb_aggregate_state *targets,
                    idx_t count) {
	(void)info;
	for (idx_t i = 0; i < count; i++) {
		const State *source = (State *)sources[i];
		State *target = (State *)targets[i];
		target->count += source->count;
		add(&target->clamped_low, &target->clamped_high, source->clamped_low, source->clamped_high);
		add(&target->whole_low, &target->whole_high, source->whole_low, source->whole_high);
	}
}

static void finalize(duckdb_function_info info, duckdb_aggregate_state *states, duckdb_vector result, idx_t count,
                     idx_t offset) {
	(void)info;
	int64_t *counts = duckdb_vector_get_data(duckdb_struct_vector_get_child(result, 0));
	duckdb_hugeint *clamped = duckdb_vector_get_data(duckdb_struct_vector_get_child(result, 1));
	duckdb_hugeint *whole = duckdb_vector_get_data(duckdb_struct_vector_get_child(result, 2));
	for (idx_t i = 0; i < count; i++) {
		const State *state = (State *)states[i];
		counts[offset + i] = (int64_t)state->count;
		clamped[offset + i] = (duckdb_hugeint) {.lower = state->clamped_low, .upper = state->clamped_high};
		whole[offset + i] = (duckdb_hugeint) {.lower = state->whole_low, .upper = state->whole_high};
	}
}

bool register_sums(duckdb_connection connection) {
	static const char name[] = "dpsql_sums";
	static const duckdb_type members[] = {DUCKDB_TYPE_BIGINT, DUCKDB_TYPE_HUGEINT, DUCKDB_TYPE_HUGEINT};
	static const Name names[] = {"count", "clamped", "whole"};
	duckdb_aggregate_function_set set = duckdb_create_aggregate_function_set(name);
	duckdb_aggregate_function function = duckdb_create_aggregate_function();
	duckdb_aggregate_function_set_name(function, name);
	add_parameters(function, DUCKDB_TYPE_BIGINT, 2);
	duckdb_aggregate_function_set_functions(function, state_size, state_init, update, combine, finalize);
	const bool whole = add_overload(set, function, struct_of(members, names, 3), NULL);
	return finish_set(connection, set, whole);
}
