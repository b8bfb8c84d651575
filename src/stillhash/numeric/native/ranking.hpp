// One query's side of a search: its exact scores, its best hits so far, and the 8-bit bound that skips codes.
//
// A score is the sum of w_i x_i over the bits, rounded to float32. The weights arrive on a grid coarse enough
// that every such sum is exact in a double whatever its order (see snap() in numeric/exact_scores.py), so the
// score of a code is one number on every path, and hits are totally ordered: score, then smaller id.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "lanes.hpp"

namespace stillhash {

// Weights on the grid of exact sums: see exact_scores.py.
inline void snap(const float* weights, int64_t bits, double* grid) {
  double sum = 0;
  for (int64_t i = 0; i < bits; ++i) sum += std::fabs(static_cast<double>(weights[i]));
  int exponent;
  std::frexp(sum, &exponent);  // sum < 2^exponent
  const int shift = exponent - 51;
  for (int64_t i = 0; i < bits; ++i)
    grid[i] = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(weights[i]), -shift)), shift);
}

struct Hit {
  float score;
  int64_t id;
};

constexpr float kNoCeiling = -std::numeric_limits<float>::infinity();

// A type, not a function, so that sorting does not call it through a pointer.
struct Better {
  bool operator()(const Hit& a, const Hit& b) const {
    return a.score > b.score || (a.score == b.score && a.id < b.id);
  }
};
constexpr Better better{};

// loss(code) = best possible score - score = sum of 2|w_i| over the bits that disagree with sgn(w_i).
struct Losses {
  int planes;
  double best = 0;                // the score of the code that agrees everywhere
  std::vector<double> bit;        // (bits): the loss of disagreeing in one bit
  std::vector<double> table;      // (2 * planes, 16): the loss of each value of each nibble

  Losses(const double* weights, int bits) : planes((bits + 7) / 8), bit(bits), table(planes * 32) {
    for (int i = 0; i < bits; ++i) {
      best += std::fabs(weights[i]);
      bit[i] = 2 * std::fabs(weights[i]);
    }
    for (int t = 0; t < 2 * planes; ++t)
      for (int v = 0; v < 16; ++v)
        for (int i = 0; i < 4 && 4 * t + i < bits; ++i) {
          const double w = weights[4 * t + i];
          if ((v >> i & 1) != (w >= 0)) table[t * 16 + v] += bit[4 * t + i];
        }
  }

  // Score of the code whose bytes are `stride` apart, from `at`.
  float score(const uint8_t* at, int64_t stride) const {
    double sums[4] = {};  // side by side, so that none waits for another: on the grid their order makes no difference
    const double* nibbles = table.data();
    int j = 0;
    for (; j + 2 <= planes; j += 2, nibbles += 64) {
      const uint8_t v = at[j * stride], w = at[(j + 1) * stride];
      sums[0] += nibbles[v & 15], sums[1] += nibbles[16 + (v >> 4)];
      sums[2] += nibbles[32 + (w & 15)], sums[3] += nibbles[48 + (w >> 4)];
    }
    if (j < planes) sums[0] += nibbles[at[j * stride] & 15] + nibbles[16 + (at[j * stride] >> 4)];
    return static_cast<float>(best - ((sums[0] + sums[1]) + (sums[2] + sums[3])));
  }
};

// The best k hits (or, with k < 0, every hit) of at least a given score. The floor rises to the best score as well, but
// not beyond the ceiling.
class Ranking {
 public:
  Ranking(const Losses& losses, int64_t k, float floor, float ceiling = kNoCeiling)
      : losses_(&losses), k_(k), floor_(floor), ceiling_(ceiling), table_(losses.table.size()) {}

  float floor() const { return floor_; }  // no lower score can be among the hits
  const Losses& losses() const { return *losses_; }

  // The 8-bit bound at the present floor. Computed only when it is needed.
  Bound bound() {
    if (floor_ != bound_floor_) {
      bound_floor_ = floor_;
      // Finer steps pay once the limit has shrunk by a quarter; until then the old table is used.
      const int limit = limit_at(admissible_loss());
      if (limit < 190) quantise();
      else limit_ = static_cast<uint8_t>(limit);
    }
    return {table_.data(), limit_};
  }

  std::vector<Hit>& hits() {
    if (k_ > 0 && static_cast<int64_t>(hits_.size()) > k_) cut();
    return hits_;
  }

  // No hit loses more than this: best - score, where any score up to the float just under the floor rounds to less
  // than the floor. A hit may lose just this, since the difference itself is rounded.
  double admissible_loss() const {
    return losses_->best - static_cast<double>(std::nextafterf(floor_, -std::numeric_limits<float>::infinity()));
  }

  void offer(float score, int64_t id) {
    if (score < floor_) return;
    raise_floor(std::min(score, ceiling_));
    const Hit hit{score, id};
    if (k_ == 0 || (cut_ && !better(hit, worst_))) return;
    hits_.push_back(hit);
    const int64_t count = hits_.size();
    if (k_ > 0 && (count == k_ || count > k_ + k_ / 2)) cut();
  }

  void raise_floor(float floor) {
    if (floor > floor_) floor_ = floor;
  }

 private:
  // Leaves the k best. A heap of hundreds of hits costs more than to cut now and then: its branches are not predictable.
  void cut() {
    std::nth_element(hits_.begin(), hits_.begin() + k_ - 1, hits_.end(), better);
    hits_.resize(k_);
    worst_ = hits_.back();
    cut_ = true;
    raise_floor(worst_.score);
  }

  // Each entry is rounded down and the limit up, so the sum of a code that may be a hit never exceeds the
  // limit: floor(a s) + floor(b s) <= (a + b) s <= limit. kSlack covers the rounding of these products.
  static constexpr double kSlack = 1e-9;

  int limit_at(double loss) const { return static_cast<int>(std::min(254.0, std::floor(loss * scale_ * (1 + kSlack)))); }

  void quantise() {
    const double loss = admissible_loss();
    if (!(loss > 0)) {  // a floor above the best possible score: nothing can be a hit
      std::fill(table_.begin(), table_.end(), uint8_t{255});
      limit_ = 0;
      return;
    }
    scale_ = 254.0 / loss * (1 - kSlack);
    for (size_t i = 0; i < table_.size(); ++i)
      table_[i] = static_cast<uint8_t>(std::min(255.0, std::floor(losses_->table[i] * scale_ * (1 - kSlack))));
    limit_ = static_cast<uint8_t>(limit_at(loss));
  }

  const Losses* losses_;
  int64_t k_;
  float floor_;
  float ceiling_;
  float bound_floor_ = -std::numeric_limits<float>::infinity();  // the floor that the table was made for
  double scale_ = 0;
  uint8_t limit_ = 255;  // without a floor everything may be a hit
  std::vector<uint8_t> table_;
  std::vector<Hit> hits_;  // the k best among them, in no order
  Hit worst_{};            // of the k best, when they were last cut
  bool cut_ = false;
};

}  // namespace stillhash
