/* The aggregate over a unit's groups: which of them it keeps, and how much bounds take away.
 *
 * dpsql_unit_C(most INTEGER, priority UINTEGER, (whole HUGEINT, bounded BIGINT) ...)
 *     -> STRUCT(groups BIGINT, last UINTEGER, size_0 HUGEINT, lost_0 HUGEINT, ...)
 *
 *   groups  the number of rows, that is of groups.
 *   last    the priority of the last group that is kept, if `most` groups are kept by their priorities.
 *           It is 2**32 - 1 if there are at most `most` priorities. It is NULL if the next priority is equal to it,
 *           because priorities then do not tell which groups are kept. `most` is from 1 to C, the same in all rows.
 *   size_i  the sum of |whole|.
 *   lost_i  the sum of |whole - bounded|.
 *
 * `groups` counts every row. The others leave NULLs out, and `lost_i` needs both arguments. Called with GROUP BY unit
 * it chooses groups in one pass and constant state: kept are those with a priority of at most `last`
 * (tests/unit/bound/test_formulations.py).
 *
 * The state has the number of groups, the `most` + 1 least priorities, and sums of 128 bits. None of them depends on
 * the order of rows or threads.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "aggregate.h"

enum { OTHERS = 2 }; /* parameters before the sums, and members of the result before them */

/* How the state of one overload is laid out. */
typedef struct {
	uint32_t capacity;
	uint32_t sums;
} Shape;

/* There is room for one priority more than the capacity. Sizes and losses of the sums follow. */
typedef struct {
	int64_t groups;
	uint8_t most;
	uint8_t held;
	uint8_t largest; /* place of the largest priority */
	uint8_t unused;
	uint32_t priorities[];
} State;

typedef struct {
	Wide size;
	Wide lost;
} Sum;

_Static_assert(OTHERS + 2 * MOST_SUMS <= MOST_MEMBERS, "a result has too many members");
_Static_assert(MOST_CAPACITY + 1 <= UINT8_MAX, "a state cannot count its priorities");

/* Filled with the same values whenever a database loads the library. */
static Shape shapes[MOST_CAPACITIES][MOST_SUMS + 1];

static inline size_t before_sums(const Shape *shape) {
	const size_t end = offsetof(State, priorities) + (shape->capacity + 1) * sizeof(uint32_t);
	return (end + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
}

static inline Sum *sums_of(State *state, const Shape *shape) {
	return (Sum *)((char *)state + before_sums(shape));
}

static inline size_t size_of(const Shape *shape) {
	return before_sums(shape) + shape->sums * sizeof(Sum);
}

static idx_t state_size(duckdb_function_info info) {
	return size_of(duckdb_aggregate_function_get_extra_info(info));
}

static void state_init(duckdb_function_info info, duckdb_aggregate_state state) {
	memset(state, 0, size_of(duckdb_aggregate_function_get_extra_info(info)));
}

static inline void add_priority(State *state, uint32_t priority) {
	uint32_t *held = state->priorities;
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

/* False where the state holds priorities under another number, for which its places are not made. */
static inline bool set_most(State *state, uint32_t most) {
	if (state->held && state->most != most) {
		return false;
	}
	state->most = (uint8_t)most;
	return true;
}

/* Adds the distance of a number from 0. */
static inline void add_distance(Wide *sum, uint64_t low, int64_t high) {
	if (high < 0) {
		low = ~low + 1;
		high = (int64_t)(~(uint64_t)high + !low);
	}
	add_wide(sum, low, high);
}

static inline void add_loss(Wide *sum, duckdb_hugeint whole, int64_t bounded) {
	const uint64_t low = whole.lower - (uint64_t)bounded;
	const uint64_t taken = (bounded < 0 ? UINT64_MAX : 0) + (whole.lower < (uint64_t)bounded);
	const int64_t high = (int64_t)((uint64_t)whole.upper - taken);
	/* of most groups nothing is lost */
	if (low || high) {
		add_distance(sum, low, high);
	}
}

static void update(duckdb_function_info info, duckdb_data_chunk input, duckdb_aggregate_state *states) {
	const Shape *shape = duckdb_aggregate_function_get_extra_info(info);
	const void *data[OTHERS + 2 * MOST_SUMS];
	const uint64_t *known[OTHERS + 2 * MOST_SUMS];
	for (uint32_t i = 0; i < OTHERS + 2 * shape->sums; i++) {
		duckdb_vector vector = duckdb_data_chunk_get_vector(input, i);
		data[i] = duckdb_vector_get_data(vector);
		known[i] = duckdb_vector_get_validity(vector);
	}
	const idx_t rows = duckdb_data_chunk_get_size(input);
	const size_t size = size_of(shape);
	for (idx_t row = 0; row < rows; row++) {
		fetch_ahead(states, row, rows, size);
		State *state = (State *)states[row];
		state->groups++;
		if (is_valid(known[0], row) && is_valid(known[1], row)) {
			const int32_t most = ((const int32_t *)data[0])[row];
			if (most < 1 || (uint32_t)most > shape->capacity) {
				duckdb_aggregate_function_set_error(info, OUT_OF_RANGE);
				return;
			}
			if (!set_most(state, (uint32_t)most)) {
				duckdb_aggregate_function_set_error(info, SEVERAL);
				return;
			}
			add_priority(state, ((const uint32_t *)data[1])[row]);
		}
		Sum *sums = sums_of(state, shape);
		for (uint32_t sum = 0; sum < shape->sums; sum++) {
			const uint32_t column = OTHERS + 2 * sum;
			if (!is_valid(known[column], row)) {
				continue;
			}
			const duckdb_hugeint whole = ((const duckdb_hugeint *)data[column])[row];
			add_distance(&sums[sum].size, whole.lower, whole.upper);
			if (is_valid(known[column + 1], row)) {
				add_loss(&sums[sum].lost, whole, ((const int64_t *)data[column + 1])[row]);
			}
		}
	}
}

static void combine(duckdb_function_info info, duckdb_aggregate_state *sources, duckdb_aggregate_state *targets,
                    idx_t count) {
	const Shape *shape = duckdb_aggregate_function_get_extra_info(info);
	for (idx_t i = 0; i < count; i++) {
		State *source = (State *)sources[i], *target = (State *)targets[i];
		if (source->held && !set_most(target, source->most)) {
			duckdb_aggregate_function_set_error(info, SEVERAL);
			return;
		}
		target->groups += source->groups;
		for (uint8_t from = 0; from < source->held; from++) {
			add_priority(target, source->priorities[from]);
		}
		const Sum *more = sums_of(source, shape);
		Sum *sums = sums_of(target, shape);
		for (uint32_t sum = 0; sum < shape->sums; sum++) {
			add_wide(&sums[sum].size, more[sum].size.low, more[sum].size.high);
			add_wide(&sums[sum].lost, more[sum].lost.low, more[sum].lost.high);
		}
	}
}

/* The priority of the last group that is kept; false where the next one has the same. */
static bool find_last(const State *state, uint32_t *last) {
	*last = UINT32_MAX;
	if (state->held <= state->most) {
		return true;
	}
	/* the largest one is turned away, and the one before it is the last that is kept */
	uint32_t before = 0;
	for (uint8_t i = 0; i < state->held; i++) {
		if (i != state->largest && before < state->priorities[i]) {
			before = state->priorities[i];
		}
	}
	*last = before;
	return before != state->priorities[state->largest];
}

static void finalize(duckdb_function_info info, duckdb_aggregate_state *states, duckdb_vector result, idx_t count,
                     idx_t offset) {
	const Shape *shape = duckdb_aggregate_function_get_extra_info(info);
	int64_t *groups = duckdb_vector_get_data(duckdb_struct_vector_get_child(result, 0));
	duckdb_vector of_last = duckdb_struct_vector_get_child(result, 1);
	uint32_t *last = duckdb_vector_get_data(of_last);
	duckdb_vector_ensure_validity_writable(of_last);
	uint64_t *known = duckdb_vector_get_validity(of_last);
	duckdb_hugeint *sizes[MOST_SUMS] = {0}, *losses[MOST_SUMS] = {0};
	for (uint32_t sum = 0; sum < shape->sums; sum++) {
		sizes[sum] = duckdb_vector_get_data(duckdb_struct_vector_get_child(result, OTHERS + 2 * sum));
		losses[sum] = duckdb_vector_get_data(duckdb_struct_vector_get_child(result, OTHERS + 2 * sum + 1));
	}
	for (idx_t i = 0; i < count; i++) {
		State *state = (State *)states[i];
		const idx_t row = offset + i;
		groups[row] = state->groups;
		if (!find_last(state, &last[row])) {
			duckdb_validity_set_row_invalid(known, row);
		}
		const Sum *sums = sums_of(state, shape);
		for (uint32_t sum = 0; sum < shape->sums; sum++) {
			sizes[sum][row] = (duckdb_hugeint) {.lower = sums[sum].size.low, .upper = sums[sum].size.high};
			losses[sum][row] = (duckdb_hugeint) {.lower = sums[sum].lost.low, .upper = sums[sum].lost.high};
		}
	}
}

static bool add_shape(duckdb_aggregate_function_set set, const char *name, Shape *shape) {
	duckdb_type members[OTHERS + 2 * MOST_SUMS] = {DUCKDB_TYPE_BIGINT, DUCKDB_TYPE_UINTEGER};
	Name names[OTHERS + 2 * MOST_SUMS] = {"groups", "last"};
	uint32_t size = OTHERS;
	duckdb_aggregate_function function = duckdb_create_aggregate_function();
	duckdb_aggregate_function_set_name(function, name);
	add_parameters(function, DUCKDB_TYPE_INTEGER, 1);
	add_parameters(function, DUCKDB_TYPE_UINTEGER, 1);
	for (uint32_t sum = 0; sum < shape->sums; sum++) {
		add_parameters(function, DUCKDB_TYPE_HUGEINT, 1);
		add_parameters(function, DUCKDB_TYPE_BIGINT, 1);
		members[size] = members[size + 1] = DUCKDB_TYPE_HUGEINT;
		snprintf(names[size++], sizeof(Name), "size_%u", sum);
		snprintf(names[size++], sizeof(Name), "lost_%u", sum);
	}
	duckdb_aggregate_function_set_functions(function, state_size, state_init, update, combine, finalize);
	return add_overload(set, function, struct_of(members, names, size), shape);
}

bool register_unit(duckdb_connection connection) {
	for (uint32_t i = 0; i < MOST_CAPACITIES; i++) {
		char name[32];
		snprintf(name, sizeof(name), "dpsql_unit_%u", CAPACITIES[i]);
		duckdb_aggregate_function_set set = duckdb_create_aggregate_function_set(name);
		bool whole = true;
		for (uint32_t sums = 0; sums <= MOST_SUMS; sums++) {
			Shape *shape = &shapes[i][sums];
			*shape = (Shape) {CAPACITIES[i], sums};
			whole = add_shape(set, name, shape) && whole;
		}
		if (!finish_set(connection, set, whole)) {
			return false;
		}
	}
	return true;
}
