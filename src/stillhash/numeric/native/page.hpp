#pragma once
#include <cstdint>

#include "lanes.hpp"

namespace stillhash {

// labels (n, l): those predicted of codes (n, ceil(bits / 8)), max(x V + v, 0)^(half_powers / 2), of unit norm. A row
// depends on its code alone, to the last bit.
void predict_labels(const Lanes& lanes, const uint8_t* codes, int64_t n, int bits, const float* V, const float* v,
                    int64_t l, int half_powers, float* labels);

// scores (m, n): of query q and the code of number places[q, i], label_share times the cosine of their labels plus
// looks_share times their score by looks, divided by the most it can be; -inf where the number is -1.
struct Page {
  const uint8_t* codes;      // (., ceil(bits / 8))
  const int64_t* places;     // (m, n)
  const double* looks;       // (m, bits), on the grid of exact sums
  const double* most;        // (m,)
  const float* item_labels;  // (., l)
  const float* labels;       // (m, l)
  int64_t m, n, l;
  int bits;
  float label_share, looks_share;
};
void page_scores(const Page& page, float* scores);

}  // namespace stillhash
