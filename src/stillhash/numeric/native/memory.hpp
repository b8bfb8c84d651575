// Huge pages: fewer misses of the processor's address cache, so that memory is read faster.
#pragma once
#include <cstddef>
#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace stillhash {

// Asks for huge pages where these bytes are in memory, and returns whether the system took the request.
inline bool advise_huge_pages(const uint8_t* bytes, size_t count) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), from = reinterpret_cast<uintptr_t>(bytes);
  const uintptr_t start = from / page * page;  // whole pages: the tiles of a file may begin anywhere in one
  return madvise(reinterpret_cast<void*>(start), from + count - start, MADV_HUGEPAGE) == 0;
#else
  (void)bytes, (void)count;
  return false;
#endif
}

}  // namespace stillhash
