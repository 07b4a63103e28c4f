/* The aggregate that bounds contributions.
 *
 * dpsql_keep_C(most INTEGER, priority UBIGINT, code BIGINT, BOOLEAN ..., BIGINT ...) -> LIST(STRUCT(...))
 *
 *   Of one unit's rows, those of the `most` groups that come first by (priority, code); most <= C, the same in all
 *   rows. Per group it counts the rows whose BOOLEAN is true (columns true_0, true_1, ...), and counts and adds the
 *   BIGINTs that are not NULL (count_0, sum_0, ...; sums are HUGEINT and exact). Called with GROUP BY unit it bounds
 *   contributions in one pass and constant state.
 *
 * Priorities and codes come from the SQL that calls it; here they are compared and nothing else. So it keeps the same
 * groups as `dense_rank() OVER (PARTITION BY unit ORDER BY priority, code) <= most` (tests/unit/bound/test_formulations.py).
 *
 * Why one pass is exact: a group is turned away, or loses its place, only where `most` groups that come before it have
 * been seen. These stay before it for good, so it is none of the first of all rows, and its rows are never missed. The
 * same holds when the states of two threads are combined. Hence the result depends on no order of rows or threads.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "aggregate.h"

enum { MOST_FLAGS = 4 }; /* in step with dpsql/bound/formulations.py */
enum { OTHERS = 3 };     /* parameters before the flags */

_Static_assert(1 + MOST_FLAGS + 2 * MOST_SUMS <= MOST_MEMBERS, "a result has too many members");

/* How the state of one overload is laid out. */
typedef struct {
	uint32_t capacity;
	uint32_t flags;
	uint32_t sums;
} Shape;

typedef struct {
	uint64_t count;
	Wide total;
} Sum;

/* Followed by `capacity` priorities and as many groups. What is looked through lies together, what belongs to one group
 * likewise, so that a row touches few lines of memory. */
typedef struct {
	uint32_t most;
	uint32_t held;
	uint32_t last; /* place of the group that comes last; valid once `held` is `most` */
	uint32_t unused;
} State;

/* Filled with the same values whenever a database loads the library. */
static Shape shapes[MOST_CAPACITIES][MOST_FLAGS + 1][MOST_SUMS + 1];

static inline uint64_t *priorities(State *state) {
	return (uint64_t *)(state + 1);
}

static inline size_t group_size(const Shape *shape) {
	return sizeof(int64_t) + shape->flags * sizeof(uint64_t) + shape->sums * sizeof(Sum);
}

/* A group's code, followed by its flag counts and its sums. */
static inline int64_t *group_at(State *state, const Shape *shape, uint32_t place) {
	return (int64_t *)((char *)(priorities(state) + shape->capacity) + place * group_size(shape));
}

static inline uint64_t *flag_counts(int64_t *group) {
	return (uint64_t *)(group + 1);
}

static inline Sum *sums_of(int64_t *group, const Shape *shape) {
	return (Sum *)(flag_counts(group) + shape->flags);
}

static idx_t state_size(duckdb_function_info info) {
	const Shape *shape = duckdb_aggregate_function_get_extra_info(info);
	return sizeof(State) + shape->capacity * (sizeof(uint64_t) + group_size(shape));
}

static void state_init(duckdb_function_info info, duckdb_aggregate_state state) {
	(void)info;
	memset(state, 0, sizeof(State));
}

static void find_last(State *state, const Shape *shape) {
	const uint64_t *priority = priorities(state);
	uint32_t last = 0;
	for (uint32_t i = 1; i < state->held; i++) {
		/* codes lie farther away, and are looked at where two priorities are equal */
		if (priority[last] < priority[i] ||
		    (priority[last] == priority[i] && *group_at(state, shape, last) < *group_at(state, shape, i))) {
			last = i;
		}
	}
	state->last = last;
}

/* A group of the state, made where it is one of the first; NULL where it is none of them. `most` is at least one. */
static inline int64_t *group_of(State *state, const Shape *shape, uint64_t its_priority, int64_t its_code) {
	uint64_t *priority = priorities(state);
	const int full = state->held == state->most;
	if (full && priority[state->last] <= its_priority &&
	    (priority[state->last] < its_priority || *group_at(state, shape, state->last) < its_code)) {
		return NULL;
	}
	for (uint32_t i = 0; i < state->held; i++) {
		if (priority[i] == its_priority && *group_at(state, shape, i) == its_code) {
			return group_at(state, shape, i);
		}
	}
	const uint32_t place = full ? state->last : state->held++;
	int64_t *group = group_at(state, shape, place);
	priority[place] = its_priority;
	memset(group, 0, group_size(shape));
	*group = its_code;
	if (state->held == state->most) {
		find_last(state, shape);
	}
	return group;
}

/* False where the state holds groups under another number, for which its places are not made. */
static inline bool set_most(State *state, uint32_t most) {
	if (state->held && state->most != most) {
		return false;
	}
	state->most = most;
	return true;
}

static inline void add(Sum *sum, uint64_t count, uint64_t low, int64_t high) {
	sum->count += count;
	add_wide(&sum->total, low, high);
}

static void update(duckdb_function_info info, duckdb_data_chunk input, duckdb_aggregate_state *states) {
	const Shape *shape = duckdb_aggregate_function_get_extra_info(info);
	const uint32_t columns = OTHERS + shape->flags + shape->sums;
	void *data[OTHERS + MOST_FLAGS + MOST_SUMS];
	uint64_t *validity[OTHERS + MOST_FLAGS + MOST_SUMS];
	for (uint32_t i = 0; i < columns; i++) {
		duckdb_vector vector = duckdb_data_chunk_get_vector(input, i);
		data[i] = duckdb_vector_get_data(vector);
		validity[i] = duckdb_vector_get_validity(vector);
	}
	const idx_t rows = duckdb_data_chunk_get_size(input);
	const size_t looked_through = sizeof(State) + shape->capacity * sizeof(uint64_t);
	for (idx_t row = 0; row < rows; row++) {
		fetch_ahead(states, row, rows, looked_through);
		if (!is_valid(validity[0], row) || !is_valid(validity[1], row) || !is_valid(validity[2], row)) {
			continue;
		}
		const int32_t most = ((int32_t *)data[0])[row];
		if (most < 1 || (uint32_t)most > shape->capacity) {
			duckdb_aggregate_function_set_error(info, OUT_OF_RANGE);
			return;
		}
		State *state = (State *)states[row];
		if (!set_most(state, (uint32_t)most)) {
			duckdb_aggregate_function_set_error(info, SEVERAL);
			return;
		}
		int64_t *group = group_of(state, shape, ((uint64_t *)data[1])[row], ((int64_t *)data[2])[row]);
		if (!group) {
			continue;
		}
		for (uint32_t flag = 0; flag < shape->flags; flag++) {
			const uint32_t column = OTHERS + flag;
			flag_counts(group)[flag] += is_valid(validity[column], row) && ((bool *)data[column])[row];
		}
		for (uint32_t sum = 0; sum < shape->sums; sum++) {
			const uint32_t column = OTHERS + shape->flags + sum;
			if (is_valid(validity[column], row)) {
				const int64_t value = ((int64_t *)data[column])[row];
				add(&sums_of(group, shape)[sum], 1, (uint64_t)value, value < 0 ? -1 : 0);
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
		for (uint32_t from = 0; from < source->held; from++) {
			int64_t *one = group_at(source, shape, from);
			int64_t *other = group_of(target, shape, priorities(source)[from], *one);
			if (!other) {
				continue;
			}
			for (uint32_t flag = 0; flag < shape->flags; flag++) {
				flag_counts(other)[flag] += flag_counts(one)[flag];
			}
			for (uint32_t sum = 0; sum < shape->sums; sum++) {
				const Sum *added = &sums_of(one, shape)[sum];
				add(&sums_of(other, shape)[sum], added->count, added->total.low, added->total.high);
			}
		}
	}
}

static void finalize(duckdb_function_info info, duckdb_aggregate_state *states, duckdb_vector result, idx_t count,
                     idx_t offset) {
	const Shape *shape = duckdb_aggregate_function_get_extra_info(info);
	const idx_t before = duckdb_list_vector_get_size(result);
	idx_t size = before;
	for (idx_t i = 0; i < count; i++) {
		size += ((State *)states[i])->held;
	}
	if (duckdb_list_vector_reserve(result, size) == DuckDBError ||
	    duckdb_list_vector_set_size(result, size) == DuckDBError) {
		duckdb_aggregate_function_set_error(info, "out of memory");
		return;
	}
	/* the columns move when the list grows, so they are asked for after it has grown */
	duckdb_list_entry *lists = duckdb_vector_get_data(result);
	duckdb_vector groups = duckdb_list_vector_get_child(result);
	int64_t *code = duckdb_vector_get_data(duckdb_struct_vector_get_child(groups, 0));
	int64_t *trues[MOST_FLAGS] = {0}, *counts[MOST_SUMS] = {0};
	duckdb_hugeint *sums[MOST_SUMS] = {0};
	for (uint32_t flag = 0; flag < shape->flags; flag++) {
		trues[flag] = duckdb_vector_get_data(duckdb_struct_vector_get_child(groups, 1 + flag));
	}
	for (uint32_t sum = 0; sum < shape->sums; sum++) {
		const idx_t column = 1 + shape->flags + 2 * sum;
		counts[sum] = duckdb_vector_get_data(duckdb_struct_vector_get_child(groups, column));
		sums[sum] = duckdb_vector_get_data(duckdb_struct_vector_get_child(groups, column + 1));
	}
	idx_t place = before;
	for (idx_t i = 0; i < count; i++) {
		State *state = (State *)states[i];
		lists[offset + i].offset = place;
		lists[offset + i].length = state->held;
		for (uint32_t j = 0; j < state->held; j++, place++) {
			int64_t *group = group_at(state, shape, j);
			code[place] = *group;
			for (uint32_t flag = 0; flag < shape->flags; flag++) {
				trues[flag][place] = (int64_t)flag_counts(group)[flag];
			}
			for (uint32_t sum = 0; sum < shape->sums; sum++) {
				const Sum *one = &sums_of(group, shape)[sum];
				counts[sum][place] = (int64_t)one->count;
				sums[sum][place].lower = one->total.low;
				sums[sum][place].upper = one->total.high;
			}
		}
	}
}

static duckdb_logical_type result_type(const Shape *shape) {
	duckdb_type members[1 + MOST_FLAGS + 2 * MOST_SUMS] = {DUCKDB_TYPE_BIGINT};
	Name names[1 + MOST_FLAGS + 2 * MOST_SUMS] = {"code"};
	uint32_t size = 1;
	for (uint32_t flag = 0; flag < shape->flags; flag++) {
		snprintf(names[size], sizeof(Name), "true_%u", flag);
		members[size++] = DUCKDB_TYPE_BIGINT;
	}
	for (uint32_t sum = 0; sum < shape->sums; sum++) {
		snprintf(names[size], sizeof(Name), "count_%u", sum);
		members[size++] = DUCKDB_TYPE_BIGINT;
		snprintf(names[size], sizeof(Name), "sum_%u", sum);
		members[size++] = DUCKDB_TYPE_HUGEINT;
	}
	duckdb_logical_type group = struct_of(members, names, size);
	duckdb_logical_type list = duckdb_create_list_type(group);
	duckdb_destroy_logical_type(&group);
	return list;
}

static bool add_shape(duckdb_aggregate_function_set set, const char *name, Shape *shape) {
	duckdb_aggregate_function function = duckdb_create_aggregate_function();
	duckdb_aggregate_function_set_name(function, name);
	add_parameters(function, DUCKDB_TYPE_INTEGER, 1);
	add_parameters(function, DUCKDB_TYPE_UBIGINT, 1);
	add_parameters(function, DUCKDB_TYPE_BIGINT, 1);
	add_parameters(function, DUCKDB_TYPE_BOOLEAN, shape->flags);
	add_parameters(function, DUCKDB_TYPE_BIGINT, shape->sums);
	duckdb_aggregate_function_set_functions(function, state_size, state_init, update, combine, finalize);
	return add_overload(set, function, result_type(shape), shape);
}

bool register_keep(duckdb_connection connection) {
	for (uint32_t i = 0; i < MOST_CAPACITIES; i++) {
		char name[32];
		snprintf(name, sizeof(name), "dpsql_keep_%u", CAPACITIES[i]);
		duckdb_aggregate_function_set set = duckdb_create_aggregate_function_set(name);
		bool whole = true;
		for (uint32_t flags = 0; flags <= MOST_FLAGS; flags++) {
			for (uint32_t sums = 0; sums <= MOST_SUMS; sums++) {
				Shape *shape = &shapes[i][flags][sums];
				*shape = (Shape) {CAPACITIES[i], flags, sums};
				whole = add_shape(set, name, shape) && whole;
			}
		}
		if (!finish_set(connection, set, whole)) {
			return false;
		}
	}
	return true;
}
