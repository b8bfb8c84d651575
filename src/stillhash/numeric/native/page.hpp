#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "lanes.hpp"
#include "rescore.hpp"

namespace stillhash {

// table (2 * ceil(bits / 8), 16, labels): what each value of each nibble of a code with the signs x adds to x V.
void fill_label_table(const float* V, int bits, int64_t labels, float* table);
inline int64_t label_table_size(int bits, int64_t labels) { return (bits + 7) / 8 * 32 * labels; }

// The labels that are predicted of a code with the signs x: max(x V + v, 0)^(half_powers / 2), of unit norm. They are
// sums over the nibbles of the code, in an order that is fixed: the same bits in any batch, on any instruction set.
class LabelTable {
 public:
  LabelTable(const Lanes& lanes, const float* table, const float* v, int bits, int64_t labels, int half_powers)
      : lanes_(&lanes), sums_{table, v, (bits + 7) / 8, labels, half_powers} {}
  int64_t labels() const { return sums_.labels; }
  void predict(const uint8_t* code, float* row) const;  // (labels,)
  // The same times its norm.
  void predict_unscaled(const uint8_t* code, float* row) const { lanes_->predict_labels(sums_, code, row); }
  // A row of x V + v to max(row, 0)^(half_powers / 2).
  void raise(float* row) const { lanes_->raise_labels(row, sums_.labels, sums_.half_powers); }

 private:
  const Lanes* lanes_;
  LabelSums sums_;
};

// scores (m, n) of each query and its codes: label_share times the cosine of their labels plus similarity_share times
// their score by similarity, divided by the most it can be.
struct Page {
  const uint8_t* codes;  // (m, n, ceil(bits / 8))
  const double* similarity;   // (m, bits), on the grid of exact sums
  const double* most;    // (m,)
  const float* labels;   // (m, labels)
  int64_t m, n;
  int bits;
  float label_share, similarity_share;
};
void page_scores(const Page& page, const LabelTable& table, float* scores);

// The hits by score (m, n) of each query and others (m, more), as one list in order of score, then id, each once. Codes
// are those of both, (m, n + more, ceil(bits / 8)). Scores, ids and codes that come out are as many; missing ones are
// last, with the id -1.
struct Candidates {
  const float* scores;    // (m, n)
  const int64_t* ids;     // (m, n + more)
  const uint8_t* codes;
  const double* weights;  // (m, bits), on the grid of exact sums
  int64_t m, n, more;
  int bits;
};
void merge_candidates(const Candidates& candidates, float* scores, int64_t* ids, uint8_t* codes, int64_t* counts);

// What orders the first page by rescoring codes and labels: see numeric/rescored_page.py, and its readable twin in
// numeric/reference.py.
struct RescoredPage {
  int64_t m, n;           // queries, and the most candidates of one
  const int64_t* counts;  // (m,): so many of the n
  const uint8_t* codes;   // (m, n, ceil(bits / 8))
  int bits;

  const uint8_t* rescoring_codes;  // (all, layout.width), of the candidates one after another
  const int64_t* label_starts;     // (all + 1,): those of candidate i are labels[label_starts[i]], ...
  const int64_t* labels;           // columns of the model, or other numbers from `table.labels()` on
  RescoreLayout layout;

  const int16_t* levels;   // (m, dim), of the queries, and
  const float* scales;     // (m,)
  const float* votes;      // (m, bits); null for none
  const float* predicted;  // (m, labels) of the queries, of unit norm
  const float* strength;   // (m,): how much labels count; 0: not at all
  float labelled_share;
  bool fixed;

  const LabelTable& table;
  const float *U, *u, *weights;  // (dim, labels), (labels,) and (labels,)
};
struct PageParts {  // (m, n) each, but for the strength (m,)
  float *scores, *cosines, *labels, *votes;
  int64_t* tiers;
  float* strength;
};
void rescored_page(const Lanes& lanes, const RescoredPage& page, const PageParts& parts);

// What placed a hit.
enum Placed : uint8_t { kByScore, kByLabels, kNear, kLiked, kDisliked };

// The first k hits of each query, given n by score, and those that come before and after them: liked, near and disliked
// ones, wherever they are among the n.
struct PageHits {
  const float* scores;       // (m, n)
  const int64_t* ids;        // (m, n), missing ones are -1
  const int64_t* tiers;      // (m, pages), by which the first hits are ordered again, and within a tier
  const float* page_scores;  // (m, pages), by these
  int64_t m, n, pages;
  const double* weights;    // (m, bits), on the grid of exact sums
  int bits;
  const uint8_t* end_codes;  // (., ceil(bits / 8)), of all queries one after another
  const int64_t* end_ids;
  const int64_t* end_counts;  // (m, 3): how many are liked, near and disliked
};
void arrange_page(const PageHits& hits, int64_t k, float* scores, int64_t* ids, uint8_t* placed);

// Where rows are stored: a row first to last is at place row - first, or at that of the last equal one of `numbers`,
// which ascend; and then at places[that], where places are given.
struct StoredRows {
  int64_t first, last;
  const int64_t* numbers;
  int64_t count;
  const int64_t* places;

  int64_t place(int64_t row) const {  // -1 if it is not there
    if (row < first || row > last) return -1;
    if (!numbers) return row - first;
    const int64_t* after = std::upper_bound(numbers, numbers + count, row);
    if (after == numbers || after[-1] != row) return -1;
    return places ? places[after - 1 - numbers] : after - 1 - numbers;
  }
};

}  // namespace stillhash
