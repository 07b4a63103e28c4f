/* Bytes on the wire, little-endian: numbers, texts as size and bytes, and chunks of rows.
 *
 * A chunk is the number of rows (u32) and, column after column, a byte a row that says whether it holds a value, and
 * then the values: of texts all sizes (u32) and then all bytes, of other types DuckDB's own representation.
 */
#include <stdlib.h>
#include <string.h>

#include "native.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire is little-endian"
#endif

void bytes_free(Bytes *bytes) {
	free(bytes->data);
	*bytes = (Bytes) {0};
}

static bool make_room(Bytes *bytes, size_t more) {
	if (bytes->failed || more > SIZE_MAX / 2 - bytes->size) {
		bytes->failed = true;
		return false;
	}
	if (bytes->size + more > bytes->room) {
		size_t room = bytes->room ? bytes->room : 256;
		while (room < bytes->size + more) {
			room *= 2;
		}
		char *data = realloc(bytes->data, room);
		if (!data) {
			bytes->failed = true;
			return false;
		}
		bytes->data = data;
		bytes->room = room;
	}
	return true;
}

void put_bytes(Bytes *bytes, const void *data, size_t size) {
	if (size && make_room(bytes, size)) {
		memcpy(bytes->data + bytes->size, data, size);
		bytes->size += size;
	}
}

void put_u8(Bytes *bytes, uint8_t value) {
	put_bytes(bytes, &value, sizeof(value));
}

void put_u32(Bytes *bytes, uint32_t value) {
	put_bytes(bytes, &value, sizeof(value));
}

void put_text(Bytes *bytes, const char *text, size_t size) {
	if (size > UINT32_MAX) {
		bytes->failed = true;
		return;
	}
	put_u32(bytes, (uint32_t)size);
	put_bytes(bytes, text, size);
}

const char *take(Reader *reader, size_t size) {
	if (reader->failed || size > reader->size) {
		reader->failed = true;
		return NULL;
	}
	const char *taken = reader->data;
	reader->data += size;
	reader->size -= size;
	return taken;
}

uint8_t take_u8(Reader *reader) {
	const char *taken = take(reader, 1);
	return taken ? (uint8_t)*taken : 0;
}

uint32_t take_u32(Reader *reader) {
	uint32_t value = 0;
	const char *taken = take(reader, sizeof(value));
	if (taken) {
		memcpy(&value, taken, sizeof(value));
	}
	return value;
}

uint32_t take_count(Reader *reader, size_t least) {
	const uint32_t count = take_u32(reader);
	if (count > reader->size / least) {
		reader->failed = true;
		return 0;
	}
	return count;
}

char *take_text(Reader *reader) {
	const uint32_t size = take_u32(reader);
	const char *taken = take(reader, size);
	char *text = malloc((taken ? size : 0) + 1);
	if (text) {
		if (taken) {
			memcpy(text, taken, size);
		}
		text[taken ? size : 0] = '\0';
	}
	return text;
}

/* Bytes of one value; 0 for texts. */
static size_t value_size(Type type) {
	switch (type.id) {
	case DUCKDB_TYPE_BOOLEAN:
	case DUCKDB_TYPE_TINYINT:
	case DUCKDB_TYPE_UTINYINT:
		return 1;
	case DUCKDB_TYPE_SMALLINT:
	case DUCKDB_TYPE_USMALLINT:
		return 2;
	case DUCKDB_TYPE_INTEGER:
	case DUCKDB_TYPE_UINTEGER:
	case DUCKDB_TYPE_FLOAT:
	case DUCKDB_TYPE_DATE:
		return 4;
	case DUCKDB_TYPE_BIGINT:
	case DUCKDB_TYPE_UBIGINT:
	case DUCKDB_TYPE_DOUBLE:
	case DUCKDB_TYPE_TIME:
	case DUCKDB_TYPE_TIMESTAMP:
	case DUCKDB_TYPE_TIMESTAMP_TZ:
		return 8;
	case DUCKDB_TYPE_DECIMAL:
		return type.width <= 4 ? 2 : type.width <= 9 ? 4 : type.width <= 18 ? 8 : 16;
	default:
		return 0;
	}
}

static bool is_text(Type type) {
	return type.id == DUCKDB_TYPE_VARCHAR || type.id == DUCKDB_TYPE_BLOB;
}

bool is_flat(Type type) {
	if (type.id == DUCKDB_TYPE_DECIMAL && (!type.width || type.width > 38 || type.scale > type.width)) {
		return false;
	}
	return is_text(type) || value_size(type);
}

bool take_type(Reader *reader, Type *type) {
	const char *taken = take(reader, sizeof(*type));
	if (taken) {
		memcpy(type, taken, sizeof(*type));
	}
	reader->failed = reader->failed || !is_flat(*type);
	return !reader->failed;
}

Type type_of(duckdb_logical_type type) {
	const duckdb_type id = duckdb_get_type_id(type);
	Type found = {(uint8_t)id, 0, 0};
	if (id == DUCKDB_TYPE_DECIMAL) {
		found.width = duckdb_decimal_width(type);
		found.scale = duckdb_decimal_scale(type);
	}
	return found;
}

duckdb_logical_type logical_type(Type type) {
	return type.id == DUCKDB_TYPE_DECIMAL ? duckdb_create_decimal_type(type.width, type.scale)
	                                      : duckdb_create_logical_type((duckdb_type)type.id);
}

static bool is_value(uint64_t *validity, idx_t row) {
	return !validity || duckdb_validity_row_is_valid(validity, row);
}

void put_chunk(Bytes *bytes, duckdb_data_chunk chunk, const Type *types, uint32_t columns) {
	const idx_t rows = duckdb_data_chunk_get_size(chunk);
	put_u32(bytes, (uint32_t)rows);
	for (uint32_t column = 0; column < columns; column++) {
		duckdb_vector vector = duckdb_data_chunk_get_vector(chunk, column);
		uint64_t *validity = duckdb_vector_get_validity(vector);
		for (idx_t row = 0; row < rows; row++) {
			put_u8(bytes, is_value(validity, row));
		}
		if (!is_text(types[column])) {
			put_bytes(bytes, duckdb_vector_get_data(vector), rows * value_size(types[column]));
			continue;
		}
		duckdb_string_t *texts = duckdb_vector_get_data(vector);
		for (idx_t row = 0; row < rows; row++) {
			put_u32(bytes, is_value(validity, row) ? duckdb_string_t_length(texts[row]) : 0);
		}
		for (idx_t row = 0; row < rows; row++) {
			if (is_value(validity, row)) {
				put_bytes(bytes, duckdb_string_t_data(&texts[row]), duckdb_string_t_length(texts[row]));
			}
		}
	}
}

static void set_nulls(duckdb_vector vector, const char *has_value, idx_t rows) {
	if (!memchr(has_value, 0, rows)) {
		return;
	}
	duckdb_vector_ensure_validity_writable(vector);
	uint64_t *validity = duckdb_vector_get_validity(vector);
	for (idx_t row = 0; row < rows; row++) {
		duckdb_validity_set_row_validity(validity, row, has_value[row] != 0);
	}
}

static void assign_texts(duckdb_vector vector, Reader *reader, const char *has_value, idx_t rows) {
	const char *sizes = take(reader, rows * sizeof(uint32_t));
	for (idx_t row = 0; sizes && row < rows; row++) {
		uint32_t size;
		memcpy(&size, sizes + row * sizeof(size), sizeof(size));
		const char *text = take(reader, size);
		if (text && has_value[row]) {
			duckdb_vector_assign_string_element_len(vector, row, text, size);
		}
	}
}

bool take_chunk(Reader *reader, duckdb_data_chunk chunk, const Type *types, uint32_t columns) {
	const idx_t rows = take_u32(reader);
	if (reader->failed || rows > duckdb_vector_size()) {
		return false;
	}
	for (uint32_t column = 0; column < columns; column++) {
		duckdb_vector vector = duckdb_data_chunk_get_vector(chunk, column);
		const char *has_value = take(reader, rows);
		if (!has_value && rows) {
			return false;
		}
		if (rows) {
			set_nulls(vector, has_value, rows);
		}
		if (is_text(types[column])) {
			assign_texts(vector, reader, has_value, rows);
			continue;
		}
		const size_t size = rows * value_size(types[column]);
		const char *values = take(reader, size);
		if (values && size) {
			memcpy(duckdb_vector_get_data(vector), values, size);
		}
	}
	duckdb_data_chunk_set_size(chunk, rows);
	return !reader->failed;
}
