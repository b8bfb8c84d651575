#include "page.hpp"

#include <numeric>

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

}  // namespace

LabelTable::LabelTable(const float* V, const float* v, int bits, int64_t labels, int half_powers)
    : planes_((bits + 7) / 8), half_powers_(half_powers), labels_(labels), v_(v), table_(planes_ * 32 * labels) {
  for (int bit = 0; bit < bits; ++bit) {
    float* nibble = &table_[bit / 4 * 16 * labels];
    for (int value = (1 << bit % 4) - 1; value >= 0; --value) {
      float *clear = nibble + value * labels, *set = clear + (1 << bit % 4) * labels;
      for (int64_t c = 0; c < labels; ++c) {
        set[c] = clear[c] + V[bit * labels + c];
        clear[c] -= V[bit * labels + c];
      }
    }
  }
}

double LabelTable::predict_unscaled(const uint8_t* code, float* row, float* spare) const {
  std::fill(row, row + labels_, 0.0f);
  for (int j = 0; j < planes_; ++j) {
    const float* low = &table_[(j * 32 + (code[j] & 15)) * labels_];
    const float* high = &table_[(j * 32 + 16 + (code[j] >> 4)) * labels_];
    for (int64_t c = 0; c < labels_; ++c) row[c] += low[c] + high[c];
  }
  for (int64_t c = 0; c < labels_; ++c) spare[c] = std::max(row[c] + v_[c], 0.0f);
  for (int64_t c = 0; c < labels_; ++c) row[c] = half_powers_ % 2 ? std::sqrt(spare[c]) : 1.0f;
  for (int p = 0; p < half_powers_ / 2; ++p)
    for (int64_t c = 0; c < labels_; ++c) row[c] *= spare[c];
  return std::sqrt(std::max(dot(row, row, labels_), 1e-30));
}

void LabelTable::predict(const uint8_t* code, float* row, float* spare) const {
  const float norm = static_cast<float>(predict_unscaled(code, row, spare));
  for (int64_t c = 0; c < labels_; ++c) row[c] /= norm;
}

void page_scores(const Page& page, const LabelTable& table, float* scores) {
  const int planes = (page.bits + 7) / 8;
  std::vector<float> predicted(table.labels()), spare(table.labels());
  for (int64_t q = 0; q < page.m; ++q) {
    const Losses looks(page.looks + q * page.bits, page.bits);
    const double most = std::max(page.most[q], 1e-30);
    for (int64_t i = q * page.n; i < (q + 1) * page.n; ++i) {
      const uint8_t* code = page.codes + i * planes;
      const double norm = table.predict_unscaled(code, predicted.data(), spare.data());
      const double product = dot(predicted.data(), page.labels + q * table.labels(), table.labels());
      const float cosine = static_cast<float>(product / norm);
      const float alike = static_cast<float>(looks.score(code, 1) / most);
      scores[i] = page.label_share * cosine + page.looks_share * alike;
    }
  }
}

void arrange_page(const PageParts& parts, int64_t k, float* scores, int64_t* ids, uint8_t* placed) {
  const int planes = (parts.bits + 7) / 8;
  std::vector<int64_t> order(parts.pages), moved;
  const uint8_t* codes = parts.end_codes;
  const int64_t* end_ids = parts.end_ids;
  for (int64_t q = 0; q < parts.m; ++q) {
    const int64_t* counts = parts.end_counts + 3 * q;
    const int64_t from = q * parts.n, ends = counts[0] + counts[1] + counts[2];
    const float* again = parts.page_scores + q * parts.pages;
    std::iota(order.begin(), order.end(), 0);
    const int64_t depth = std::min(parts.pages, k + ends);  // those further back cannot matter
    std::partial_sort(order.begin(), order.begin() + depth, order.end(), [&](int64_t a, int64_t b) {
      const bool missing_a = parts.ids[from + a] < 0, missing_b = parts.ids[from + b] < 0;
      if (missing_a != missing_b) return missing_b;
      return again[a] > again[b] || (again[a] == again[b] && a < b);
    });
    moved.assign(end_ids, end_ids + ends);
    std::sort(moved.begin(), moved.end());

    const int64_t stop = (q + 1) * k;
    int64_t to = q * k;
    const auto put = [&](float score, int64_t id, Placed place) {
      if (to < stop) scores[to] = score, ids[to] = id, placed[to] = place, ++to;
    };
    const auto put_ends = [&](int64_t count, Placed place) {
      if (count == 0) return;
      const Losses losses(parts.weights + q * parts.bits, parts.bits);
      for (int64_t i = 0; i < count; ++i, ++end_ids, codes += planes) put(losses.score(codes, 1), *end_ids, place);
    };
    put_ends(counts[0], kLiked);
    put_ends(counts[1], kNear);
    for (int64_t i = 0; i < parts.n && to < stop; ++i) {
      const int64_t at = from + (i < parts.pages ? order[i] : i);
      if (parts.ids[at] >= 0 && !std::binary_search(moved.begin(), moved.end(), parts.ids[at]))
        put(parts.scores[at], parts.ids[at], i < parts.pages ? kByLabels : kByScore);
    }
    put_ends(counts[2], kDisliked);
  }
}

}  // namespace stillhash
