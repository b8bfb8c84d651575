// Rescoring codes (numeric/rescoring.py): rotation, quantisation, and exact products of levels. Every value is the same
// on any instruction set, and the same as of NumPy: this file is compiled without fused products and sums.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lanes.hpp"

namespace stillhash {
namespace {  // so that each translation unit has its own, made for its instruction set

// Four sums side by side, in an order that is fixed. A product of two floats is exact in a double.
inline double dot(const float* a, const float* b, int64_t n) {
  typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
  typedef double Doubles __attribute__((vector_size(32)));
  Doubles sums = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    sums += __builtin_convertvector(*reinterpret_cast<const Four*>(a + i), Doubles) *
            __builtin_convertvector(*reinterpret_cast<const Four*>(b + i), Doubles);
  for (; i < n; ++i) sums[i % 4] += static_cast<double>(a[i]) * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

// Rounds of signs, a Hadamard transform of the largest power of two and a turn of the halves by 45 degrees.
struct Rotation {
  const float* signs;  // (rounds, dim)
  int64_t rounds, dim;
};

// A code is `bits` planes of `plane` bytes, the least significant first, and a float32.
struct RescoreLayout {
  int64_t dim, plane, width;
  int bits;
  RescoreLayout(int64_t d, int b) : dim(d), plane((d + 7) / 8), width(b * plane + 4), bits(b) {}

  bool marked(const uint8_t* code) const { return code[width - 1] >= 0x80; }
  float correction(const uint8_t* code) const {  // 0 of a zero or lost row; its sign is a mark
    float correction;
    std::memcpy(&correction, code + bits * plane, 4);
    return std::isfinite(correction) ? std::fabs(correction) : 0.0f;
  }
};

void rescore_encode(const Lanes& lanes, const Rotation& rotation, const RescoreLayout& layout, float steps,
                    const float* X, int64_t n, int threads, uint8_t* codes);
void rescore_levels(const Lanes& lanes, const RescoreLayout& layout, const uint8_t* codes, int64_t n, float* levels);

// products (m, n) of the levels of queries (m, dim), at most 8191 in magnitude, and those of their codes (m, n, width).
void rescore_products(const Lanes& lanes, const RescoreLayout& layout, const uint8_t* codes, const int16_t* queries,
                      int64_t m, int64_t n, int64_t* products);

}  // namespace stillhash
