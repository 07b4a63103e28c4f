/* How an aggregate becomes known to DuckDB. */
#include "aggregate.h"

duckdb_logical_type struct_of(const duckdb_type *members, const Name *names, uint32_t size) {
	duckdb_logical_type types[MOST_MEMBERS];
	const char *listed[MOST_MEMBERS];
	for (uint32_t i = 0; i < size; i++) {
		types[i] = duckdb_create_logical_type(members[i]);
		listed[i] = names[i];
	}
	duckdb_logical_type made = duckdb_create_struct_type(types, listed, size);
	for (uint32_t i = 0; i < size; i++) {
		duckdb_destroy_logical_type(&types[i]);
	}
	return made;
}

void add_parameters(duckdb_aggregate_function function, duckdb_type type, uint32_t times) {
	duckdb_logical_type parameter = duckdb_create_logical_type(type);
	for (uint32_t i = 0; i < times; i++) {
		duckdb_aggregate_function_add_parameter(function, parameter);
	}
	duckdb_destroy_logical_type(&parameter);
}

bool add_overload(duckdb_aggregate_function_set set, duckdb_aggregate_function function, duckdb_logical_type result,
                  void *shape) {
	duckdb_aggregate_function_set_return_type(function, result);
	duckdb_destroy_logical_type(&result);
	/* rows where one argument is NULL count for the others */
	duckdb_aggregate_function_set_special_handling(function);
	duckdb_aggregate_function_set_extra_info(function, shape, NULL);
	const duckdb_state added = duckdb_add_aggregate_function_to_set(set, function);
	duckdb_destroy_aggregate_function(&function);
	return added == DuckDBSuccess;
}

bool finish_set(duckdb_connection connection, duckdb_aggregate_function_set set, bool whole) {
	const bool done = whole && duckdb_register_aggregate_function_set(connection, set) == DuckDBSuccess;
	duckdb_destroy_aggregate_function_set(&set);
	return done;
}
