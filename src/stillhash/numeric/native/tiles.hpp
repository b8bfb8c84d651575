// Where codes are in tiles, and which row of a block an id is.
#pragma once
#include <algorithm>
#include <cstdint>

#include "scan.hpp"

namespace stillhash {

// The first byte of the code of a row; the next bytes are kTile apart.
inline int64_t place_of(int64_t row, int64_t planes) { return row / kTile * planes * kTile + row % kTile; }

inline void write_code(uint8_t* tiles, int64_t row, int64_t planes, const uint8_t* code) {
  uint8_t* at = tiles + place_of(row, planes);
  for (int64_t j = 0; j < planes; ++j) at[j * kTile] = code[j];
}

inline void read_code(const uint8_t* tiles, int64_t row, int64_t planes, uint8_t* code) {
  const uint8_t* at = tiles + place_of(row, planes);
  for (int64_t j = 0; j < planes; ++j) code[j] = at[j * kTile];
}

// The live row with this id, -1 if there is none. In a block that lists its ids, it is found only if they ascend.
inline int64_t row_with(const Block& block, int64_t id) {
  const int64_t r = block.ids ? std::lower_bound(block.ids, block.ids + block.rows, id) - block.ids : id - block.first;
  if (r < 0 || r >= block.rows || (block.ids && block.ids[r] != id)) return -1;
  return !block.live || (block.live[r / 8] >> (r % 8) & 1) ? r : -1;
}

}  // namespace stillhash
