// A system to preload (LD_PRELOAD) that lacks memory or threads, or whose clock jumps. It does what a file says that
// the process maps: STILLHASH_FAULT_CONTROL names it, injection.py writes it, from this process or from another.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <fcntl.h>
#include <initializer_list>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

enum Kind : int64_t { kMemory = 1, kThread = 2, kLearn = 4 };
enum Course : int64_t { kOnce, kFromThen, kEach };
enum Callers : int64_t { kCareful, kKernels };

struct Control {       // as injection.py writes it
  int64_t kinds;       // what fails; 0: nothing
  int64_t course;      // the call of number `at`, all from it on, or each `at`-th
  int64_t at;          // from 1
  int64_t least;       // bytes: smaller allocations always succeed
  int64_t callers;     // allocations of which libraries count: all that report failures, or the kernels alone
  int64_t seen;        // calls that could have failed
  int64_t failed;
  int64_t clock_shift; // nanoseconds that the clock of the day is ahead
};

const void* array_sites[16];  // where NumPy allocates arrays

Control* control = nullptr;
__thread bool fresh = true;    // this thread has not allocated; Python waits forever for one that cannot begin
__thread bool inside = false;  // this thread is here already: dladdr may allocate

__attribute__((constructor)) void map_control() {
  const char* path = getenv("STILLHASH_FAULT_CONTROL");
  if (path == nullptr) return;
  const long handle = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  if (handle < 0) return;
  const long place = syscall(SYS_mmap, nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
  syscall(SYS_close, handle);
  if (place > 0 || place < -4095) control = reinterpret_cast<Control*>(place);
}

bool is_in(const void* code, const char* library) {
  Dl_info info;
  return dladdr(code, &info) && info.dli_fname != nullptr && strstr(info.dli_fname, library) != nullptr;
}

// NumPy takes the buffers of operations on mixed types, and of indices, without a look whether it got them. For its
// arrays it looks; from where it takes those is learnt while a process makes some.
bool learn_array_site(const void* caller) {
  for (const void*& site : array_sites)
    if (site == caller || site == nullptr) return site = caller, true;
  return false;
}

bool is_numpy_buffer(const void* caller) {
  if (!is_in(caller, "_multiarray_umath")) return false;
  for (const void* site : array_sites)
    if (site == caller) return false;
  return true;
}

// Libraries that end the process when an allocation fails: those in Rust, by default, OpenBLAS, and parts of NumPy.
bool aborts(const void* caller) {
  for (const char* library : {"pydantic_core", "safetensors", "openblas", "ld-linux"})
    if (is_in(caller, library)) return true;
  return is_numpy_buffer(caller);
}

bool is_kernel(const void* caller) { return is_in(caller, "libstdc++") || is_in(caller, "_native"); }

bool fails(int64_t kind, size_t size, const void* caller) {
  if (control == nullptr || inside) return false;
  if (kind == kMemory && control->kinds == kLearn && is_in(caller, "_multiarray_umath")) learn_array_site(caller);
  if (!(control->kinds & kind)) return false;
  if (kind == kMemory) {
    if (static_cast<int64_t>(size) < control->least) return false;
    inside = true;
    const bool counted = control->callers == kKernels ? is_kernel(caller) : !aborts(caller);
    inside = false;
    if (!counted) return false;
    if (control->callers != kKernels && fresh) return fresh = false;
  }
  const int64_t number = __atomic_add_fetch(&control->seen, 1, __ATOMIC_RELAXED), at = control->at;
  const bool due = control->course == kOnce       ? number == at
                   : control->course == kFromThen ? number >= at
                                                  : number % at == 0;
  if (due) __atomic_add_fetch(&control->failed, 1, __ATOMIC_RELAXED);
  return due;
}

void* no_memory() {
  errno = ENOMEM;
  return nullptr;
}

void* map(void* place, size_t size, int protection, int flags, int handle, off_t offset, const void* caller) {
  if (fails(kMemory, size, caller)) return errno = ENOMEM, MAP_FAILED;
  const long at = syscall(SYS_mmap, place, size, protection, flags, handle, offset);
  return reinterpret_cast<void*>(at);
}

void shift(timespec* now) {
  if (control == nullptr || control->clock_shift == 0) return;
  const int64_t at = now->tv_sec * 1000000000ll + now->tv_nsec + control->clock_shift;
  now->tv_sec = at / 1000000000, now->tv_nsec = at % 1000000000;
}

}  // namespace

#define CALLER __builtin_return_address(0)

extern "C" {

void* malloc(size_t size) { return fails(kMemory, size, CALLER) ? no_memory() : __libc_malloc(size); }
void* calloc(size_t count, size_t size) {
  return fails(kMemory, count * size, CALLER) ? no_memory() : __libc_calloc(count, size);
}
void* realloc(void* place, size_t size) {
  return fails(kMemory, size, CALLER) ? no_memory() : __libc_realloc(place, size);
}
void* memalign(size_t alignment, size_t size) {
  return fails(kMemory, size, CALLER) ? no_memory() : __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  return fails(kMemory, size, CALLER) ? no_memory() : __libc_memalign(alignment, size);
}
int posix_memalign(void** place, size_t alignment, size_t size) {
  if (fails(kMemory, size, CALLER)) return ENOMEM;
  void* memory = __libc_memalign(alignment, size);
  if (memory == nullptr) return ENOMEM;
  *place = memory;
  return 0;
}
void* mmap(void* place, size_t size, int protection, int flags, int handle, off_t offset) noexcept {
  return map(place, size, protection, flags, handle, offset, CALLER);
}
void* mmap64(void* place, size_t size, int protection, int flags, int handle, off64_t offset) noexcept {
  return map(place, size, protection, flags, handle, offset, CALLER);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*), void* with) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const Create create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return fails(kThread, 0, nullptr) ? EAGAIN : create(thread, attributes, work, with);
}

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  using Gettime = int (*)(clockid_t, timespec*);
  static const Gettime gettime = reinterpret_cast<Gettime>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = gettime(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) shift(now);
  return result;
}
int gettimeofday(timeval* now, void*) noexcept {
  timespec precise;
  if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
  now->tv_sec = precise.tv_sec, now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* now) noexcept {
  timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (now != nullptr) *now = precise.tv_sec;
  return precise.tv_sec;
}

}  // extern "C"
