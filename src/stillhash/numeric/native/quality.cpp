#include "quality.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
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

bool is_relevant(uint64_t item) { return item & 1; }

double discounted(float grade, int64_t rank) { return grade / std::log2(rank + 1.0); }

}  // namespace

void rank_quality(const float* scores, const float* grades, int64_t queries, int64_t n, int64_t page, int64_t depth,
                  double* out) {
  std::vector<uint64_t> items(n), buffer(n);
  std::vector<float> best(std::min(page, n));  // the largest grades
  std::vector<double> harmonic(n + 1);  // H(0), ..., H(n)
  for (int64_t i = 1; i <= n; ++i) harmonic[i] = harmonic[i - 1] + 1.0 / i;
  for (int64_t q = 0; q < queries; ++q, scores += n, grades += n, out += 5) {
    for (int64_t i = 0; i < n; ++i)
      items[i] = static_cast<uint64_t>(sort_key(scores[i])) << 32 | static_cast<uint64_t>(i) << 1 | (grades[i] > 0);
    sort_items(items, buffer);
    double precisions = 0, expected = 0;
    int64_t relevant = 0;
    for (int64_t t = 0, end; t < n; t = end) {  // groups of equal scores
      const int64_t before = relevant;
      const double precisions_before = precisions;
      for (end = t; end < n && items[end] >> 32 == items[t] >> 32; ++end)
        if (is_relevant(items[end])) precisions += static_cast<double>(++relevant) / (end + 1);
      const double size = end - t, r = relevant - before;
      if (size == 1) {
        expected += precisions - precisions_before;
      } else if (r > 0) {  // the closed form is derived in reference.py
        const double rho = (r - 1) / (size - 1);
        expected += r / size * (size * rho + (before + 1 - rho * (t + 1)) * (harmonic[end] - harmonic[t]));
      }
    }
    std::partial_sort_copy(grades, grades + n, best.begin(), best.end(), std::greater<>());
    const auto count = [&](int64_t k) {
      return static_cast<double>(std::count_if(items.begin(), items.begin() + std::min(k, n), is_relevant));
    };
    double gained = 0, ideal = 0;
    for (size_t i = 0; i < best.size(); ++i) {
      gained += discounted(grades[(items[i] & 0xFFFFFFFFu) >> 1], i + 1);
      ideal += discounted(best[i], i + 1);
    }
    out[0] = relevant ? precisions / relevant : 0;
    out[1] = relevant ? expected / relevant : 0;
    out[2] = count(page) / page;
    out[3] = count(depth) / depth;
    out[4] = ideal > 0 ? gained / ideal : 0;
  }
}

}  // namespace stillhash
