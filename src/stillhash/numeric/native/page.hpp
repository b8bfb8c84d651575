#pragma once
#include <cstdint>
#include <vector>

namespace stillhash {

// The labels that are predicted of a code with the signs x: max(x V + v, 0)^(half_powers / 2), of unit norm. They are
// sums over the nibbles of the code, in an order that is fixed: the same bits in any batch, on any instruction set.
class LabelTable {
 public:
  LabelTable(const float* V, const float* v, int bits, int64_t labels, int half_powers);
  int64_t labels() const { return labels_; }
  void predict(const uint8_t* code, float* row, float* spare) const;  // both (labels,)
  double predict_unscaled(const uint8_t* code, float* row, float* spare) const;  // times its norm; returns the norm

 private:
  int planes_, half_powers_;
  int64_t labels_;
  const float* v_;
  std::vector<float> table_;  // (2 * planes, 16, labels): what each value of each nibble adds
};

// scores (m, n) of each query and its codes: label_share times the cosine of their labels plus looks_share times their
// score by looks, divided by the most it can be.
struct Page {
  const uint8_t* codes;  // (m, n, ceil(bits / 8))
  const double* looks;   // (m, bits), on the grid of exact sums
  const double* most;    // (m,)
  const float* labels;   // (m, labels)
  int64_t m, n;
  int bits;
  float label_share, looks_share;
};
void page_scores(const Page& page, const LabelTable& table, float* scores);

// What placed a hit.
enum Placed : uint8_t { kByScore, kByLabels, kNear, kLiked, kDisliked };

// The first k hits of each query, given n by score, and those that come before and after them: liked, near and disliked
// ones, wherever they are among the n.
struct PageParts {
  const float* scores;       // (m, n)
  const int64_t* ids;        // (m, n), missing ones are -1 and last
  const float* page_scores;  // (m, pages), by which the first hits are ordered again
  int64_t m, n, pages;
  const double* weights;    // (m, bits), on the grid of exact sums
  int bits;
  const uint8_t* end_codes;  // (., ceil(bits / 8)), of all queries one after another
  const int64_t* end_ids;
  const int64_t* end_counts;  // (m, 3): how many are liked, near and disliked
};
void arrange_page(const PageParts& parts, int64_t k, float* scores, int64_t* ids, uint8_t* placed);

}  // namespace stillhash
