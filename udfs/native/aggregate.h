/* Parts that the aggregates share. */
#ifndef DPSQL_AGGREGATE_H
#define DPSQL_AGGREGATE_H

#include "native.h"

enum { AHEAD = 12, LINE = 64 }; /* rows, bytes */

/* In step with dpsql/bound/formulations.py, which says what is asked of the library. */
static const uint32_t CAPACITIES[] = {1, 2, 4, 8, 16, 32, 64};
enum { MOST_CAPACITIES = sizeof(CAPACITIES) / sizeof(CAPACITIES[0]), MOST_CAPACITY = 64 };
enum { MOST_SUMS = 4 };
enum { MOST_MEMBERS = 16 }; /* of a STRUCT that an aggregate returns */

static const char OUT_OF_RANGE[] = "the number of groups to keep is out of range";
static const char SEVERAL[] = "the number of groups to keep must be the same in all rows";

/* A whole number of 128 bits. States of DuckDB lie on multiples of 8 bytes, the compiler's own type on 16. */
typedef struct {
	uint64_t low;
	int64_t high;
} Wide;

/* High parts are added as unsigned numbers, where overflow is defined. */
static inline void add_wide(Wide *sum, uint64_t low, int64_t high) {
	sum->low += low;
	sum->high = (int64_t)((uint64_t)sum->high + (uint64_t)high + (sum->low < low));
}

static inline bool is_valid(const uint64_t *validity, idx_t row) {
	return !validity || (validity[row / 64] >> (row % 64) & 1);
}

/* Fetches the state of a row to come. States lie far apart, and waiting for each in turn would be most of the time. */
static inline void fetch_ahead(const duckdb_aggregate_state *states, idx_t row, idx_t rows, size_t size) {
	if (row + AHEAD < rows) {
		const char *ahead = (const char *)states[row + AHEAD];
		for (size_t line = 0; line < size; line += LINE) {
			__builtin_prefetch(ahead + line, 1);
		}
	}
}

/* ---- aggregate.c ---- */

/* Name of a member of the result. */
typedef char Name[24];

/* A STRUCT of at most MOST_MEMBERS members. */
duckdb_logical_type struct_of(const duckdb_type *members, const Name *names, uint32_t size);
void add_parameters(duckdb_aggregate_function function, duckdb_type type, uint32_t times);
/* Adds a function with a type of results to a set, and frees both. Its callbacks can read `shape`, and see rows with a
 * NULL, too. */
bool add_overload(duckdb_aggregate_function_set set, duckdb_aggregate_function function, duckdb_logical_type result,
                  void *shape);

#endif
