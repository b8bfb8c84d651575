// Encoding: rows of features to packed codes in one pass, so that a row is read from memory once.
#pragma once
#include <cstdint>

#include "lanes.hpp"

namespace stillhash {

constexpr int kEncodeRows = 48;    // rows encoded at a time; a multiple of the rows of a register tile
constexpr int kEncodeDepth = 256;  // features multiplied at a time, so that a slice of W stays in the cache
constexpr int kEncodeStride = kEncodeDepth + 16;  // of prepared rows, so that they do not compete for cache lines
constexpr int kPanelColumns = 16;  // columns of a panel of W: a row of a panel is one cache line
constexpr int kFewRows = 16;       // below this, rearranging W costs more than it saves

struct HashFunctions {
  const float* mean;    // (D,)
  const float* W;       // (D, bits)
  const float* t;       // (bits,)
  const float* panels;  // W rearranged by `to_panels`, or null for fewer than kFewRows rows
  int64_t D;
  int bits;
  bool unit_norm;
};

// Static, since each instruction set compiles its own.
static inline int64_t panel_count(int bits) { return (bits + kPanelColumns - 1) / kPanelColumns; }

// Code r of codes (n, ceil(bits / 8)) is the signs of (x - mean) / |x - mean| W + t of row r of X, and norms[r] is
// |x - mean|. A code depends on its row alone, and equals that of the steps one by one, to the last bit.
void encode_rows(const Lanes& lanes, const HashFunctions& functions, const float* X, int64_t n, int threads,
                 uint8_t* codes, float* norms);

}  // namespace stillhash
