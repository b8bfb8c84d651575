// AVX-512 (F, BW, VL, DQ): the same loops, twice as wide.
#include <immintrin.h>

#include <cmath>

#include "encode.hpp"
#include "lanes.hpp"

#define LANE_BYTES 64
#define TILE_ROWS 8
#define TILE_VECTORS 3

namespace {
struct Simd {
  using V = __m512i;
  static constexpr int kLanes = 64;
  static constexpr int kAlone = 4;  // registers of codes that one query takes at a time: a whole tile
  static V zero() { return _mm512_setzero_si512(); }
  static V splat(char x) { return _mm512_set1_epi8(x); }
  static V load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static V table(const uint8_t* p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static V both(V a, V b) { return _mm512_and_si512(a, b); }
  static V high_nibble(V a) { return _mm512_srli_epi16(a, 4); }
  static V lookup(V t, V i) { return _mm512_shuffle_epi8(t, i); }
  static V add(V a, V b) { return _mm512_adds_epu8(a, b); }
  static V lower(V a, V b) { return _mm512_min_epu8(a, b); }
  static bool any_at_most(V a, V limit) { return _mm512_cmple_epu8_mask(a, limit) != 0; }
  static void store_at_most(uint64_t* words, int at, V a, V limit) {
    words[at / 64] = _mm512_cmple_epu8_mask(a, limit);
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
  __m512i s[4] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
  for (size_t i = 0; i + 256 <= n; i += 256)
    for (int j = 0; j < 4; ++j) s[j] = _mm512_add_epi64(s[j], Simd::load(p + i + 64 * j));
  return _mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_add_epi64(s[0], s[1]), _mm512_add_epi64(s[2], s[3])));
}
}  // namespace
const Lanes kAvx512 = {
    "avx512", filter, learn<float>, learn<double>, project<float>, encode,
    predict_labels, raise_labels, rotate, quantise, read};
}  // namespace stillhash
