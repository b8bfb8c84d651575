#pragma once
#include <cstdint>
#include <vector>

#include "ranking.hpp"

namespace stillhash {

// Rows of codes in tiles. Row r of the block has the id first + r, or ids[r] where ids are given; where a
// bitmap `live` is given (whole tiles of bits, little-endian), only rows whose bit is set exist.
struct Block {
  const uint8_t* tiles;
  int64_t rows;
  int64_t first;
  const int64_t* ids;
  const uint8_t* live;
};

// The hits of each query among the rows of all blocks, best first: the k best, or with k < 0 all, of at least the
// query's floor, and of at least the lower of its best score and its ceiling. Equal to scoring every row and sorting by
// score, then smaller id, sampled or not: a sample of the rows estimates the score of the k-th best hit first.
std::vector<std::vector<Hit>> scan(const Lanes& lanes, const std::vector<Block>& blocks, int bits,
                                   const double* weights, int64_t queries, int64_t k, const float* floors,
                                   const float* ceilings, int threads, bool sampled = true);

}  // namespace stillhash
