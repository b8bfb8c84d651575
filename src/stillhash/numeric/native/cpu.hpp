// What this x86 processor and its system can run. The compilers' own tests (__builtin_cpu_supports) need a library that
// not every one of them links into a shared one.
#pragma once

#ifdef STILLHASH_X86
#include <cpuid.h>

#include <cstdint>
#include <cstring>

namespace stillhash {

struct Cpu {
  bool intel = false;
  bool avx2 = false;    // with FMA
  bool avx512 = false;  // F, BW, VL and DQ, besides all of avx2
};

// Which registers the system saves when it changes threads: a bit each.
inline uint64_t saved_registers() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

inline Cpu this_cpu() {
  Cpu cpu;
  unsigned a, b, c, d;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return cpu;
  const unsigned vendor[3] = {b, d, c};
  cpu.intel = std::memcmp(vendor, "GenuineIntel", sizeof vendor) == 0;
  constexpr unsigned kFma = 1u << 12, kSystemSaves = 1u << 27, kAvx = 1u << 28;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return cpu;
  const unsigned needed = kFma | kSystemSaves | kAvx;
  if ((c & needed) != needed) return cpu;
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6;
  const uint64_t saved = saved_registers();
  if ((saved & kYmm) != kYmm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return cpu;
  constexpr unsigned kAvx2 = 1u << 5, kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;
  cpu.avx2 = b & kAvx2;
  cpu.avx512 = cpu.avx2 && (saved & kZmm) == kZmm && (b & kF) && (b & kDq) && (b & kBw) && (b & kVl);
  return cpu;
}

}  // namespace stillhash
#endif
