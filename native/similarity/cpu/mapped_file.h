// Files mapped into memory that may be cut by somebody else while they are. Reading behind the new end raises SIGBUS,
// which would end the process: the handler puts zeros there instead and remembers it, so that whoever asked learns of
// it afterwards.
#pragma once
#include <cstddef>

namespace shoal {

/**
 * The bytes of a file, copied where they are written to; null with errno set when it cannot be mapped. Its size goes to
 * *size.
 */
char *map_file(const char *path, size_t *size);
void unmap_file(char *data);
/**
 * Whether reading it waits for no file: false for what lies in a mapping and is not in memory, or is more than a few
 * megabytes.
 */
bool is_in_memory(const char *data, size_t size);
/**
 * True when the file is shorter than when it was mapped, or something behind its end was read since. False for memory
 * that is no mapping.
 */
bool is_cut(const char *data);

} // namespace shoal
