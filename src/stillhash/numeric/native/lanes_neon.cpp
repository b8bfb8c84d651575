// NEON: every 64-bit ARM.
#include <arm_neon.h>

#include <cmath>

#include "encode.hpp"
#include "lanes.hpp"

#define LANE_BYTES 16
#define TILE_ROWS 8
#define TILE_VECTORS 3

namespace {
struct Simd {
  using V = uint8x16_t;
  static constexpr int kLanes = 16;
  static constexpr int kAlone = 16;  // registers of codes that one query takes at a time: a whole tile
  static V zero() { return vdupq_n_u8(0); }
  static V splat(char x) { return vdupq_n_u8(static_cast<uint8_t>(x)); }
  static V load(const uint8_t* p) { return vld1q_u8(p); }
  static V table(const uint8_t* p) { return vld1q_u8(p); }
  static V both(V a, V b) { return vandq_u8(a, b); }
  static V high_nibble(V a) { return vshrq_n_u8(a, 4); }
  static V lookup(V t, V i) { return vqtbl1q_u8(t, i); }
  static V add(V a, V b) { return vqaddq_u8(a, b); }
  static V lower(V a, V b) { return vminq_u8(a, b); }
  static bool any_at_most(V a, V limit) { return vmaxvq_u8(vcleq_u8(a, limit)) != 0; }
  static void store_at_most(uint64_t* words, int at, V a, V limit) {
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const V bits = vandq_u8(vcleq_u8(a, limit), vld1q_u8(bit));
    uint8_t* bytes = reinterpret_cast<uint8_t*>(words) + at / 8;  // little-endian
    bytes[0] = vaddv_u8(vget_low_u8(bits));
    bytes[1] = vaddv_u8(vget_high_u8(bits));
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
  uint64x2_t s[4] = {vdupq_n_u64(0), vdupq_n_u64(0), vdupq_n_u64(0), vdupq_n_u64(0)};
  for (size_t i = 0; i + 64 <= n; i += 64)
    for (int j = 0; j < 4; ++j) s[j] = vaddq_u64(s[j], vreinterpretq_u64_u8(vld1q_u8(p + i + 16 * j)));
  return vaddvq_u64(vaddq_u64(vaddq_u64(s[0], s[1]), vaddq_u64(s[2], s[3])));
}
}  // namespace
const Lanes kNeon = {
    "neon", filter, learn<float>, learn<double>, project<float>, encode,
    predict_labels, raise_labels, rotate, quantise, read};
}  // namespace stillhash
