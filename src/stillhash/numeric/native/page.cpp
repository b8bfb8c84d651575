#include "page.hpp"

#include <cstring>

#include "ranking.hpp"

namespace stillhash {
namespace {

// Four sums side by side, in an order that is fixed. A product of two floats is exact in a double.
double dot(const float* a, const float* b, int64_t n) {
  double sums[4] = {};
  for (int64_t i = 0; i + 4 <= n; i += 4)
    for (int j = 0; j < 4; ++j) sums[j] += static_cast<double>(a[i + j]) * b[i + j];
  for (int64_t i = n / 4 * 4; i < n; ++i) sums[i % 4] += static_cast<double>(a[i]) * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The signs of the eight bits of every byte.
struct ByteSigns {
  float of[256][8];
  ByteSigns() {
    for (int byte = 0; byte < 256; ++byte)
      for (int i = 0; i < 8; ++i) of[byte][i] = byte >> i & 1 ? 1.0f : -1.0f;
  }
};

}  // namespace

void predict_labels(const Lanes& lanes, const uint8_t* codes, int64_t n, int bits, const float* V, const float* v,
                    int64_t l, int half_powers, float* labels) {
  static const ByteSigns signs;
  const int planes = (bits + 7) / 8;
  std::vector<float> x(static_cast<size_t>(kBlock) * bits);
  for (int64_t s = 0; s < n; s += kBlock) {
    const int64_t rows = std::min<int64_t>(kBlock, n - s);
    for (int64_t r = 0; r < rows; ++r)
      for (int i = 0; i < bits; i += 8)
        std::memcpy(&x[r * bits + i], signs.of[codes[(s + r) * planes + i / 8]], sizeof(float) * std::min(8, bits - i));
    lanes.project(x.data(), rows, bits, V, l, labels + s * l);
    for (int64_t r = s; r < s + rows; ++r) {
      float* row = labels + r * l;
      for (int64_t c = 0; c < l; ++c) {
        const float y = std::max(row[c] + v[c], 0.0f);
        float power = half_powers % 2 ? std::sqrt(y) : 1.0f;
        for (int p = 0; p < half_powers / 2; ++p) power *= y;
        row[c] = power;
      }
      const float norm = static_cast<float>(std::sqrt(std::max(dot(row, row, l), 1e-30)));
      for (int64_t c = 0; c < l; ++c) row[c] /= norm;
    }
  }
}

void page_scores(const Page& page, float* scores) {
  const int planes = (page.bits + 7) / 8;
  for (int64_t q = 0; q < page.m; ++q) {
    const Losses looks(page.looks + q * page.bits, page.bits);
    const double most = std::max(page.most[q], 1e-30);
    for (int64_t i = q * page.n; i < (q + 1) * page.n; ++i) {
      const int64_t place = page.places[i];
      scores[i] = -std::numeric_limits<float>::infinity();
      if (place < 0) continue;
      const float alike = static_cast<float>(looks.score(page.codes + place * planes, 1) / most);
      const float cosine = static_cast<float>(dot(page.item_labels + place * page.l, page.labels + q * page.l, page.l));
      scores[i] = page.label_share * cosine + page.looks_share * alike;
    }
  }
}

}  // namespace stillhash
