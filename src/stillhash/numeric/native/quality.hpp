#pragma once
#include <cstdint>

namespace stillhash {

// How good the ranking of n items by falling score is, ties in the order given: average precision, the same averaged
// over all orders of ties, precision of the first page, precision of the first `depth`, and nDCG of the first page.
// Grades are numbers from 0, and the gain of an item is its grade; relevant is what has more than 0.
void rank_quality(const float* scores, const float* grades, int64_t queries, int64_t n, int64_t page, int64_t depth,
                  double* out);

}  // namespace stillhash
