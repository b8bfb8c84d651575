// Plain C++ for any processor: the same results without intrinsics.
#include <cmath>

#include "encode.hpp"
#include "lanes.hpp"

#define LANE_BYTES 16
#define TILE_ROWS 4
#define TILE_VECTORS 2

#include "learn.inl"
#include "encode.inl"
#include "labels.inl"
#include "rotate.inl"

namespace stillhash {
namespace {

void filter(const uint8_t* tiles, int count, int planes, const Bound* bounds, int open, int selective,
            uint64_t (*survivors)[kWords], const uint8_t*) {
  for (int q = 0; q < open + selective; ++q)
    for (int word = 0; word < count * kTile / 64; ++word) {
      const uint8_t* codes = tiles + static_cast<size_t>(word * 64 / kTile) * planes * kTile + word * 64 % kTile;
      uint64_t bits = 0;
      for (int c = 0; c < 64; ++c) {
        unsigned sum = 0;
        for (int j = 0; j < planes; ++j) {
          const uint8_t v = codes[static_cast<size_t>(j) * kTile + c];
          sum += bounds[q].table[j * 32 + (v & 15)] + bounds[q].table[j * 32 + 16 + (v >> 4)];
        }
        bits |= static_cast<uint64_t>((sum < 255 ? sum : 255) <= bounds[q].limit) << c;
      }
      survivors[q][word] = bits;
    }
}

uint64_t read(const uint8_t* p, size_t n) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += p[i];
  return sum;
}

}  // namespace
const Lanes kPortable = {
    "portable", filter, learn<float>, learn<double>, project<float>, encode,
    predict_labels, raise_labels, rotate, quantise, read};
}  // namespace stillhash
