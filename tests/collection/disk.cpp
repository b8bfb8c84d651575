// A disk to preload (LD_PRELOAD): it writes down all that is done to the files under one folder, or fails at a chosen
// call. disk.py says what to do, and reads the log.
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

enum Kind : unsigned { kWrite = 1, kSync = 2, kRename = 4, kGrow = 8, kRemove = 16, kCreate = 32, kRead = 64 };

std::string root;  // empty: nothing is watched
int log_file = -1;

enum Course { kOnce, kFromThen, kNowAndThen };

struct {
  unsigned kinds = 0;
  long at = 0, seen = 0, met = 0;
  int course = kOnce;
  bool torn = false;  // a write that fails once has taken one half
  int error = EIO;
} fault;

struct Head {  // of an entry in the log; path and data follow
  uint32_t what, path;
  uint64_t file;
  int64_t offset;
  uint64_t data;
};

bool watched(const std::string& path) {
  const size_t size = root.size();
  return size && path.compare(0, size, root) == 0 && (path.size() == size || path[size] == '/');
}

std::string path_of(int handle) {
  if (root.empty()) return {};
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  const ssize_t size = readlink(link, path, sizeof path);
  return size < 0 ? std::string() : std::string(path, size);
}

std::string path_at(int folder, const char* path) {
  if (root.empty() || path[0] == '/') return path;
  char here[4096];
  const std::string base = folder != AT_FDCWD ? path_of(folder) : getcwd(here, sizeof here) ? here : "";
  return base + "/" + path;
}

struct stat about(int handle) {
  struct stat found {};
  fstat(handle, &found);
  return found;
}

void note(char what, const std::string& path, uint64_t file, int64_t offset, const void* data, size_t size) {
  if (log_file < 0) return;
  const int before = errno;
  Head head{static_cast<uint32_t>(what), static_cast<uint32_t>(path.size()), file, offset, size};
  const iovec parts[] = {
      {&head, sizeof head}, {const_cast<char*>(path.data()), path.size()}, {const_cast<void*>(data), size}};
  const size_t all = sizeof head + path.size() + size;
  if (syscall(SYS_writev, log_file, parts, 3) != static_cast<long>(all)) abort();
  errno = before;
}

uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

bool due() {
  if (fault.course == kNowAndThen) return mixed(mixed(fault.at) + fault.seen) % 50 == 0;
  return fault.seen == fault.at || (fault.course == kFromThen && fault.seen > fault.at);
}

bool fails(unsigned kind) {
  if (!(fault.kinds & kind)) return false;
  ++fault.seen;
  if (!due()) return false;
  ++fault.met;
  errno = fault.error;
  return true;
}

bool tears(size_t size) {
  if (!fault.torn || fault.course == kNowAndThen || !(fault.kinds & kWrite)) return false;
  if (fault.seen + 1 != fault.at || size < 2) return false;
  fault.torn = false;
  ++fault.seen;
  ++fault.at;  // the rest, which comes next, fails
  return true;
}

int opened(int folder, const char* name, int flags, mode_t mode) {
  const std::string path = path_at(folder, name);
  if (!watched(path)) return syscall(SYS_openat, folder, name, flags, mode);
  struct stat found;
  const bool there = fstatat(folder, name, &found, 0) == 0;
  if (!there && (flags & O_CREAT) && fails(kCreate)) return -1;
  const int handle = syscall(SYS_openat, folder, name, flags, mode);
  if (handle >= 0 && !there) note('c', path, about(handle).st_ino, 0, nullptr, 0);
  if (handle >= 0 && there && (flags & O_TRUNC)) note('t', "", found.st_ino, 0, nullptr, 0);
  return handle;
}

ssize_t written(int handle, const void* data, size_t size, off_t offset) {  // offset -1: where the file stands
  const bool here = watched(path_of(handle));
  if (here && tears(size)) size /= 2;
  else if (here && fails(kWrite)) return -1;
  const ssize_t done =
      offset < 0 ? syscall(SYS_write, handle, data, size) : syscall(SYS_pwrite64, handle, data, size, offset);
  if (here && done > 0)
    note('w', "", about(handle).st_ino, offset < 0 ? lseek(handle, 0, SEEK_CUR) - done : offset, data, done);
  return done;
}

ssize_t got(int handle, void* data, size_t size, off_t offset) {  // offset -1: where the file stands
  if ((fault.kinds & kRead) && watched(path_of(handle)) && fails(kRead)) return -1;
  return offset < 0 ? syscall(SYS_read, handle, data, size) : syscall(SYS_pread64, handle, data, size, offset);
}

ssize_t written_parts(int handle, const iovec* parts, int count, off_t offset) {  // one by one, as a disk may do
  ssize_t all = 0;
  for (int p = 0; p < count; ++p) {
    const ssize_t done = written(handle, parts[p].iov_base, parts[p].iov_len, offset < 0 ? -1 : offset + all);
    if (done < 0) return all ? all : -1;
    all += done;
    if (static_cast<size_t>(done) < parts[p].iov_len) break;
  }
  return all;
}

int resized(int handle, off_t size) {
  const bool here = watched(path_of(handle));
  if (here && size > about(handle).st_size && fails(kGrow)) return -1;
  const int done = syscall(SYS_ftruncate, handle, size);
  if (here && done == 0) note('t', "", about(handle).st_ino, size, nullptr, 0);
  return done;
}

int reserved(int handle, int mode, off_t offset, off_t size) {
  const bool here = watched(path_of(handle));
  if (here && fails(kGrow)) return -1;
  const int done = syscall(SYS_fallocate, handle, mode, offset, size);
  if (here && done == 0) note('t', "", about(handle).st_ino, about(handle).st_size, nullptr, 0);
  return done;
}

int synced(int handle, long call) {
  const std::string path = path_of(handle);
  if (!watched(path)) return syscall(call, handle);
  if (fails(kSync)) return -1;
  const struct stat found = about(handle);
  note(S_ISDIR(found.st_mode) ? 'd' : 's', path, found.st_ino, 0, nullptr, 0);
  return 0;  // the power of this machine stays on
}

int renamed(int from_folder, const char* from, int to_folder, const char* to) {
  const std::string before = path_at(from_folder, from), after = path_at(to_folder, to);
  if (watched(before) && fails(kRename)) return -1;
  const int done = syscall(SYS_renameat2, from_folder, from, to_folder, to, 0);
  if (watched(before) && done == 0) note('r', before, 0, 0, after.data(), after.size());
  return done;
}

int linked(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  const std::string before = path_at(from_folder, from), after = path_at(to_folder, to);
  if (watched(before) && fails(kRename)) return -1;
  const int done = syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
  if (watched(before) && done == 0) note('l', before, 0, 0, after.data(), after.size());
  return done;
}

int removed(int folder, const char* name, int flags) {
  const std::string path = path_at(folder, name);
  struct stat found;
  if (watched(path) && fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW) == 0 && fails(kRemove)) return -1;
  const int done = syscall(SYS_unlinkat, folder, name, flags);
  if (watched(path) && done == 0) note('u', path, 0, 0, nullptr, 0);
  return done;
}

int made(int folder, const char* name, mode_t mode) {
  const std::string path = path_at(folder, name);
  struct stat found;
  if (watched(path) && fstatat(folder, name, &found, 0) != 0 && fails(kCreate)) return -1;
  const int done = syscall(SYS_mkdirat, folder, name, mode);
  if (watched(path) && done == 0) note('m', path, 0, 0, nullptr, 0);
  return done;
}

mode_t mode_of(int flags, va_list rest) { return flags & O_CREAT ? va_arg(rest, mode_t) : 0; }

}  // namespace

#define OPENS(name)                                   \
  int name(const char* path, int flags, ...) {        \
    va_list rest;                                     \
    va_start(rest, flags);                            \
    const mode_t mode = mode_of(flags, rest);         \
    va_end(rest);                                     \
    return opened(AT_FDCWD, path, flags, mode);       \
  }
#define OPENS_AT(name)                                      \
  int name(int folder, const char* path, int flags, ...) {  \
    va_list rest;                                           \
    va_start(rest, flags);                                  \
    const mode_t mode = mode_of(flags, rest);               \
    va_end(rest);                                           \
    return opened(folder, path, flags, mode);               \
  }

extern "C" {

// ---- what disk.py calls ----

void disk_watch(const char* folder, const char* log) {
  root = folder;
  if (log != nullptr) log_file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}
void disk_mark(long number) { note('a', "", 0, number, nullptr, 0); }
void disk_fail(unsigned kinds, long at, int error, int course, int torn) {
  fault = {kinds, at, 0, 0, course, torn != 0, error};
}
long disk_seen() { return fault.seen; }
long disk_met() { return fault.met; }

// ---- what everybody calls ----

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
int creat(const char* path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char* path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

ssize_t read(int handle, void* data, size_t size) { return got(handle, data, size, -1); }
ssize_t pread(int handle, void* data, size_t size, off_t offset) { return got(handle, data, size, offset); }
ssize_t pread64(int handle, void* data, size_t size, off64_t offset) { return got(handle, data, size, offset); }

ssize_t write(int handle, const void* data, size_t size) { return written(handle, data, size, -1); }
ssize_t pwrite(int handle, const void* data, size_t size, off_t offset) { return written(handle, data, size, offset); }
ssize_t pwrite64(int handle, const void* data, size_t size, off64_t offset) {
  return written(handle, data, size, offset);
}
ssize_t writev(int handle, const iovec* parts, int count) { return written_parts(handle, parts, count, -1); }
ssize_t pwritev(int handle, const iovec* parts, int count, off_t offset) {
  return written_parts(handle, parts, count, offset);
}
ssize_t pwritev64(int handle, const iovec* parts, int count, off64_t offset) {
  return written_parts(handle, parts, count, offset);
}

int ftruncate(int handle, off_t size) noexcept { return resized(handle, size); }
int ftruncate64(int handle, off64_t size) noexcept { return resized(handle, size); }
int fallocate(int handle, int mode, off_t offset, off_t size) { return reserved(handle, mode, offset, size); }
int fallocate64(int handle, int mode, off64_t offset, off64_t size) { return reserved(handle, mode, offset, size); }
int posix_fallocate(int handle, off_t offset, off_t size) { return reserved(handle, 0, offset, size) ? errno : 0; }
int posix_fallocate64(int handle, off64_t offset, off64_t size) {
  return reserved(handle, 0, offset, size) ? errno : 0;
}

int fsync(int handle) { return synced(handle, SYS_fsync); }
int fdatasync(int handle) { return synced(handle, SYS_fdatasync); }

int rename(const char* from, const char* to) noexcept { return renamed(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return renamed(from_folder, from, to_folder, to);
}
int link(const char* from, const char* to) noexcept { return linked(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  return linked(from_folder, from, to_folder, to, flags);
}
int unlink(const char* path) noexcept { return removed(AT_FDCWD, path, 0); }
int unlinkat(int folder, const char* path, int flags) noexcept { return removed(folder, path, flags); }
int rmdir(const char* path) noexcept { return removed(AT_FDCWD, path, AT_REMOVEDIR); }
int mkdir(const char* path, mode_t mode) noexcept { return made(AT_FDCWD, path, mode); }
int mkdirat(int folder, const char* path, mode_t mode) noexcept { return made(folder, path, mode); }

}  // extern "C"
