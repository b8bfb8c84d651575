// AVX2 and FMA: every x86-64 since 2013.
#include <immintrin.h>

#include <cmath>

#include "encode.hpp"
#include "lanes.hpp"

#define LANE_BYTES 32
#define TILE_ROWS 4
#define TILE_VECTORS 3

namespace {
struct Simd {
  using V = __m256i;
  static constexpr int kLanes = 32;
  static constexpr int kAlone = 8;  // registers of codes that one query takes at a time: a whole tile
  static V zero() { return _mm256_setzero_si256(); }
  static V splat(char x) { return _mm256_set1_epi8(x); }
  static V load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const V*>(p)); }
  static V table(const uint8_t* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static V both(V a, V b) { return _mm256_and_si256(a, b); }
  static V high_nibble(V a) { return _mm256_srli_epi16(a, 4); }
  static V lookup(V t, V i) { return _mm256_shuffle_epi8(t, i); }
  static V add(V a, V b) { return _mm256_adds_epu8(a, b); }
  static V lower(V a, V b) { return _mm256_min_epu8(a, b); }
  static bool any_at_most(V a, V limit) { return _mm256_movemask_epi8(_mm256_cmpeq_epi8(lower(a, limit), a)) != 0; }
  static void store_at_most(uint64_t* words, int at, V a, V limit) {
    const uint32_t bits = _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_min_epu8(a, limit), a));
    reinterpret_cast<uint32_t __attribute__((may_alias))*>(words)[at / 32] = bits;
  }
};
}  // namespace

#include "filter.inl"
#include "learn.inl"
#include "encode.inl"
#include "labels.inl"
#include "rotate.inl"

namespace stillhash {
namespace {
uint64_t read(const uint8_t* p, size_t n) {
  __m256i s[4] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
  for (size_t i = 0; i + 128 <= n; i += 128)
    for (int j = 0; j < 4; ++j) s[j] = _mm256_add_epi64(s[j], Simd::load(p + i + 32 * j));
  const __m256i t = _mm256_add_epi64(_mm256_add_epi64(s[0], s[1]), _mm256_add_epi64(s[2], s[3]));
  return _mm256_extract_epi64(t, 0) + _mm256_extract_epi64(t, 1) + _mm256_extract_epi64(t, 2) +
         _mm256_extract_epi64(t, 3);
}
}  // namespace
const Lanes kAvx2 = {
    "avx2", filter, learn<float>, learn<double>, project<float>, encode,
    predict_labels, raise_labels, rotate, quantise, read};
}  // namespace stillhash
