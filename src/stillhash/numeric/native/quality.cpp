#include "quality.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

namespace stillhash {
namespace {

constexpr int kDigits = 3, kDigitBits = 11, kBuckets = 1 << kDigitBits;

// Rising with falling score; -0 counts as 0.
uint32_t sort_key(float score) {
  score += 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &score, 4);
  const uint32_t rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return ~rising;
}

// An item is its key, its place and, lowest, its relevance. Items come by place and a radix sort keeps the order of
// equals, so only the key is sorted by.
void sort_items(std::vector<uint64_t>& items, std::vector<uint64_t>& buffer) {
  std::vector<uint32_t> starts(kDigits * kBuckets);
  for (const uint64_t item : items)
    for (int d = 0; d < kDigits; ++d) ++starts[d * kBuckets + (item >> (32 + d * kDigitBits)) % kBuckets];
  for (int d = 0; d < kDigits; ++d) {
    uint32_t* start = starts.data() + d * kBuckets;
    if (*std::max_element(start, start + kBuckets) == items.size()) continue;  // all alike here
    uint32_t at = 0;
    for (int v = 0; v < kBuckets; ++v) at += std::exchange(start[v], at);
    for (const uint64_t item : items) buffer[start[(item >> (32 + d * kDigitBits)) % kBuckets]++] = item;
    items.swap(buffer);
  }
}

double gain(double grade, int64_t rank) { return (std::exp2(grade) - 1) / std::log2(rank + 1.0); }

// The discounted gain of the best order of these grades, to rank k.
double best_gain(const float* grades, int64_t n, int64_t k) {
  std::vector<int64_t> counts;
  for (int64_t i = 0; i < n; ++i) {
    const size_t grade = static_cast<size_t>(grades[i]);
    if (grade >= counts.size()) counts.resize(grade + 1);
    ++counts[grade];
  }
  double sum = 0;
  int64_t rank = 0;
  for (size_t grade = counts.size(); grade-- > 1;)
    for (int64_t c = 0; c < counts[grade] && rank < k; ++c) sum += gain(static_cast<double>(grade), ++rank);
  return sum;
}

}  // namespace

void rank_quality(const float* scores, const float* grades, int64_t queries, int64_t n, int64_t k, double* out) {
  std::vector<uint64_t> items(n), buffer(n);
  std::vector<double> harmonic(n + 1);  // H(0), ..., H(n)
  for (int64_t i = 1; i <= n; ++i) harmonic[i] = harmonic[i - 1] + 1.0 / i;
  for (int64_t q = 0; q < queries; ++q, scores += n, grades += n, out += 4) {
    for (int64_t i = 0; i < n; ++i)
      items[i] = static_cast<uint64_t>(sort_key(scores[i])) << 32 | static_cast<uint64_t>(i) << 1 | (grades[i] > 0);
    sort_items(items, buffer);
    double precisions = 0, expected = 0;
    int64_t relevant = 0;
    for (int64_t t = 0, end; t < n; t = end) {  // groups of equal scores
      const int64_t before = relevant;
      const double precisions_before = precisions;
      for (end = t; end < n && items[end] >> 32 == items[t] >> 32; ++end)
        if (items[end] & 1) precisions += static_cast<double>(++relevant) / (end + 1);
      const double size = end - t, r = relevant - before;
      if (size == 1) {
        expected += precisions - precisions_before;
      } else if (r > 0) {  // the closed form is derived in reference.py
        const double rho = (r - 1) / (size - 1);
        expected += r / size * (size * rho + (before + 1 - rho * (t + 1)) * (harmonic[end] - harmonic[t]));
      }
    }
    double first = 0, gained = 0;
    for (int64_t i = 0; i < std::min(k, n); ++i) {
      first += items[i] & 1;
      gained += gain(grades[(items[i] & 0xFFFFFFFFu) >> 1], i + 1);
    }
    const double best = best_gain(grades, n, k);
    out[0] = relevant ? precisions / relevant : 0;
    out[1] = relevant ? expected / relevant : 0;
    out[2] = first / k;
    out[3] = best > 0 ? gained / best : 0;
  }
}

}  // namespace stillhash
