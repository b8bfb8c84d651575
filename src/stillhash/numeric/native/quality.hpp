#pragma once
#include <cstdint>

namespace stillhash {

// How good the ranking of n items by falling score is, ties in the order given: average precision, the same averaged
// over all orders of ties, precision of the first k, and nDCG of the first k. Grades are whole numbers from 0;
// relevant is what has more than 0.
void rank_quality(const float* scores, const float* grades, int64_t queries, int64_t n, int64_t k, double* out);

}  // namespace stillhash
