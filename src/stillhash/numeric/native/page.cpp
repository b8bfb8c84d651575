#include "page.hpp"

#include <cstring>
#include <map>
#include <numeric>

#include "ranking.hpp"

namespace stillhash {
namespace {

double norm_of(const float* row, int64_t n) { return std::sqrt(std::max(dot(row, row, n), 1e-30)); }

// Eight sums of floats side by side, in an order that is fixed.
float short_dot(const float* a, const float* b, int64_t n) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  for (; i < n; ++i) sums[i % 8] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

}  // namespace

void fill_label_table(const float* V, int bits, int64_t labels, float* table) {
  std::fill_n(table, label_table_size(bits, labels), 0.0f);
  for (int bit = 0; bit < bits; ++bit) {
    float* nibble = table + bit / 4 * 16 * labels;
    for (int value = (1 << bit % 4) - 1; value >= 0; --value) {
      float *clear = nibble + value * labels, *set = clear + (1 << bit % 4) * labels;
      for (int64_t c = 0; c < labels; ++c) {
        set[c] = clear[c] + V[bit * labels + c];
        clear[c] -= V[bit * labels + c];
      }
    }
  }
}

void LabelTable::predict(const uint8_t* code, float* row) const {
  predict_unscaled(code, row);
  const float norm = static_cast<float>(norm_of(row, labels()));
  for (int64_t c = 0; c < labels(); ++c) row[c] /= norm;
}

void page_scores(const Page& page, const LabelTable& table, float* scores) {
  const int planes = (page.bits + 7) / 8;
  std::vector<float> predicted(table.labels());
  for (int64_t q = 0; q < page.m; ++q) {
    const Losses similarity(page.similarity + q * page.bits, page.bits);
    const double most = std::max(page.most[q], 1e-30);
    for (int64_t i = q * page.n; i < (q + 1) * page.n; ++i) {
      const uint8_t* code = page.codes + i * planes;
      table.predict_unscaled(code, predicted.data());
      const double norm = norm_of(predicted.data(), table.labels());
      const double product = dot(predicted.data(), page.labels + q * table.labels(), table.labels());
      const float cosine = static_cast<float>(product / norm);
      const float alike = static_cast<float>(similarity.score(code, 1) / most);
      scores[i] = page.label_share * cosine + page.similarity_share * alike;
    }
  }
}

void merge_candidates(const Candidates& candidates, float* scores, int64_t* ids, uint8_t* codes, int64_t* counts) {
  const int64_t n = candidates.n, total = n + candidates.more, planes = (candidates.bits + 7) / 8;
  struct Candidate {
    Hit hit;
    const uint8_t* code;
  };
  const auto before = [](const Candidate& a, const Candidate& b) { return better(a.hit, b.hit); };
  std::vector<Candidate> merged;
  for (int64_t q = 0; q < candidates.m; ++q, scores += total, ids += total, codes += total * planes) {
    const int64_t* own = candidates.ids + q * total;
    const uint8_t* code = candidates.codes + q * total * planes;
    const Losses losses(candidates.weights + q * candidates.bits, candidates.bits);
    merged.clear();
    int64_t first = 0;
    for (int64_t i = 0; i < total; ++i, code += planes) {
      if (own[i] < 0) continue;
      const float score = i < n ? candidates.scores[q * n + i] : losses.score(code, 1);
      merged.push_back({{score, own[i]}, code});
      first += i < n;
    }
    std::sort(merged.begin() + first, merged.end(), before);
    std::inplace_merge(merged.begin(), merged.begin() + first, merged.end(), before);
    int64_t to = 0;
    for (const Candidate& some : merged) {
      if (to > 0 && ids[to - 1] == some.hit.id) continue;
      scores[to] = some.hit.score, ids[to] = some.hit.id;
      std::copy_n(some.code, planes, codes + to++ * planes);
    }
    counts[q] = to;
    std::fill(scores + to, scores + total, -std::numeric_limits<float>::infinity());
    std::fill(ids + to, ids + total, -1);
    std::fill(codes + to * planes, codes + total * planes, 0);
  }
}

namespace {

constexpr int64_t kNeighbours = 10, kFinalists = 32;  // as in numeric/reference.py, and
constexpr float kShortCodeWeight = 0.5f, kNearCosine = 0.95f, kNearestCosine = 0.9f;
constexpr double kStoredWeight = 0.7;
constexpr int64_t kFinalistsAtOnce = 16;  // so that their levels stay in the cache

// Sorts as the tier, then as the number, the largest first, then as the place; all numbers are finite.
uint64_t sort_key(uint64_t tier, float number, int64_t place) {
  const float positive_zero = number + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &positive_zero, 4);
  bits = bits >> 31 ? bits : ~bits & 0x7FFFFFFF;
  return tier << 62 | static_cast<uint64_t>(bits) << 30 | static_cast<uint64_t>(place);
}

int64_t place_of_key(uint64_t key) { return key & ((1 << 30) - 1); }

// Leaves the least `count` keys, in order.
void keep_least(std::vector<uint64_t>& keys, int64_t count) {
  count = std::min(count, static_cast<int64_t>(keys.size()));
  std::nth_element(keys.begin(), keys.begin() + count, keys.end());
  keys.resize(count);
  std::sort(keys.begin(), keys.end());
}

// One query: its candidates, whose number i is the `first` + i-th of all, and what it expects of their labels.
class PageQuery {
 public:
  PageQuery(const RescoredPage& page, int64_t q, int64_t first, const PageParts& parts)
      : page_(page), q_(q), first_(first), count_(page.counts[q]), own_(page.predicted + q * page.table.labels()),
        out_{parts.scores + q * page.n, parts.cosines + q * page.n, parts.labels + q * page.n, parts.votes + q * page.n,
             parts.tiers + q * page.n, parts.strength + q} {}

  // The labels of the query: those predicted of it, and those that its nearest candidates have.
  void expect_labels() {
    const int64_t labels = page_.table.labels();
    keys_.clear();
    for (int64_t i = 0; i < count_; ++i) keys_.push_back(sort_key(0, out_.cosines[i], i));
    keep_least(keys_, kNeighbours);
    expected_.assign(labels, 0.0);
    others_.clear(), other_places_.clear();
    double total = 0, covered = 0;
    for (const uint64_t key : keys_) {
      const int64_t i = place_of_key(key);
      const float cosine = std::max(out_.cosines[i], 0.0f);
      const double square = static_cast<double>(cosine) * cosine, weight = square * square * square * square;
      total += weight;
      if (label_count(i) == 0) continue;
      covered += weight;
      const double each = weight / std::sqrt(static_cast<double>(label_count(i)));
      for (const int64_t* label = labels_of(i); label < labels_of(i + 1); ++label)
        (*label < labels ? expected_[*label] : other(*label)) += each;
    }
    const double share = page_.labelled_share, trust = std::sqrt(share);
    scale_expected(trust);
    for (int64_t c = 0; c < labels; ++c) expected_[c] += own_[c];
    scale_expected(1);
    wanted_.resize(labels);
    for (int64_t c = 0; c < labels; ++c) wanted_[c] = static_cast<float>(expected_[c] * page_.weights[c]);
    const double coverage = std::min(1.0, covered / std::max(total, 1e-9) / std::max(share, 1e-9));
    const double strength = page_.strength[q_], squared = coverage * coverage, fourth = squared * squared;
    *out_.strength = static_cast<float>(page_.fixed ? strength : strength * (1 - trust + trust * fourth * fourth));
  }

  // The score of a candidate of which these labels are predicted, once they have unit norm.
  void score(int64_t i, const float* predicted) {
    const int64_t labels = page_.table.labels();
    const double length = short_dot(predicted, predicted, labels), norm = std::sqrt(std::max(length, 1e-30));
    double product = short_dot(predicted, wanted_.data(), labels) / norm, square = length / (norm * norm);
    if (label_count(i) > 0) {
      const double each = kStoredWeight / std::sqrt(static_cast<double>(label_count(i)));
      double shared = 0, known = 0;
      for (const int64_t* label = labels_of(i); label < labels_of(i + 1); ++label)
        if (*label < labels) shared += wanted_[*label], known += predicted[*label];
        else if (const auto at = other_places_.find(*label); at != other_places_.end()) shared += others_[at->second];
      product += each * shared;
      square += 2 * each * known / norm + kStoredWeight * kStoredWeight;
    }
    const float agreement = static_cast<float>(product / std::sqrt(std::max(square, 1e-30)));
    out_.labels[i] = agreement;
    out_.scores[i] = *out_.strength * agreement + (1 - *out_.strength) * out_.cosines[i] + out_.votes[i];
  }

  // Scores all candidates by the labels of their short codes, and the best by those of their rescoring codes too.
  void score_all(const Lanes& lanes) {
    const int64_t labels = page_.table.labels(), dim = page_.layout.dim, planes = (page_.bits + 7) / 8;
    const uint8_t* codes = page_.codes + q_ * page_.n * planes;
    row_.resize(labels);
    keys_.clear();
    for (int64_t i = 0; i < count_; ++i) {
      page_.table.predict_unscaled(codes + i * planes, row_.data());
      score(i, row_.data());
      keys_.push_back(sort_key(out_.tiers[i], out_.scores[i], i));
      out_.tiers[i] *= 2;
    }
    keep_least(keys_, kFinalists);
    finalists_.clear();
    for (const uint64_t key : keys_)
      if (out_.tiers[place_of_key(key)] > 0) finalists_.push_back(place_of_key(key));
    levels_.resize(kFinalistsAtOnce * dim), by_levels_.resize(kFinalistsAtOnce * labels);
    const int64_t total = finalists_.size();
    for (int64_t from = 0; from < total; from += kFinalistsAtOnce) {
      const int64_t count = std::min(kFinalistsAtOnce, total - from);
      for (int64_t f = 0; f < count; ++f)
        rescore_levels(lanes, page_.layout, rescoring_code(finalists_[from + f]), 1, &levels_[f * dim]);
      lanes.project(levels_.data(), count, dim, page_.U, labels, by_levels_.data());
      for (int64_t f = 0; f < count; ++f) score_finalist(finalists_[from + f], &by_levels_[f * labels]);
    }
  }

  // The same by the labels that its levels predict, before they are corrected.
  void score_finalist(int64_t i, float* both) {
    const int64_t labels = page_.table.labels(), planes = (page_.bits + 7) / 8;
    const float correction = page_.layout.correction(rescoring_code(i));
    for (int64_t c = 0; c < labels; ++c) both[c] = both[c] * correction + page_.u[c];
    page_.table.raise(both);
    const float norm = static_cast<float>(norm_of(both, labels));
    if (page_.layout.marked(rescoring_code(i))) {  // the short code holds labels
      for (int64_t c = 0; c < labels; ++c) both[c] /= norm;
    } else {
      page_.table.predict(page_.codes + (q_ * page_.n + i) * planes, row_.data());
      for (int64_t c = 0; c < labels; ++c) both[c] = both[c] / norm + kShortCodeWeight * row_[c];
    }
    out_.tiers[i] = 1;
    score(i, both);
  }

  void run(const Lanes& lanes) {
    const RescoredPage& page = page_;
    products_.resize(count_);
    const int16_t* levels = page.levels + q_ * page.layout.dim;
    rescore_products(lanes, page.layout, rescoring_code(0), levels, 1, count_, products_.data());
    for (int64_t i = 0; i < count_; ++i) {
      const double product = static_cast<double>(products_[i]) * static_cast<double>(page.scales[q_]);
      out_.cosines[i] = static_cast<float>(product * page.layout.correction(rescoring_code(i)));
      out_.tiers[i] = out_.cosines[i] < kNearCosine;
    }
    const float* nearest = std::max_element(out_.cosines, out_.cosines + count_);  // the first of equals
    if (count_ > 0 && *nearest >= kNearestCosine) out_.tiers[nearest - out_.cosines] = 0;
    if (page.votes) {
      const std::vector<double> weights(page.votes + q_ * page.bits, page.votes + (q_ + 1) * page.bits);
      const Losses losses(weights.data(), page.bits);
      const int64_t planes = losses.planes;
      const float length = static_cast<float>(2 * std::sqrt(static_cast<double>(page.bits)));
      for (int64_t i = 0; i < count_; ++i)
        out_.votes[i] = losses.score(page.codes + (q_ * page.n + i) * planes, 1) / length;
    }
    if (count_ > 0 && page.strength[q_] > 0) {
      expect_labels();
      score_all(lanes);
    } else {
      for (int64_t i = 0; i < count_; ++i) out_.scores[i] = out_.cosines[i] + out_.votes[i];
    }
  }

 private:
  const int64_t* labels_of(int64_t i) const { return page_.labels + page_.label_starts[first_ + i]; }
  int64_t label_count(int64_t i) const { return labels_of(i + 1) - labels_of(i); }
  const uint8_t* rescoring_code(int64_t i) const { return page_.rescoring_codes + (first_ + i) * page_.layout.width; }

  double& other(int64_t label) {
    const auto [at, is_new] = other_places_.emplace(label, others_.size());
    if (is_new) others_.push_back(0);
    return others_[at->second];
  }

  void scale_expected(double length) {
    double square = 0;
    for (const double x : expected_) square += x * x;
    for (const double x : others_) square += x * x;
    const double scale = length / std::max(std::sqrt(square), 1e-30);
    for (double& x : expected_) x *= scale;
    for (double& x : others_) x *= scale;
  }

  const RescoredPage& page_;
  int64_t q_, first_, count_;
  const float* own_;
  PageParts out_;
  std::vector<uint64_t> keys_;
  std::vector<int64_t> products_, finalists_;
  std::vector<double> expected_, others_;  // the query's labels of the model, and others in the order of their rows
  std::map<int64_t, size_t> other_places_;
  std::vector<float> wanted_;  // those of the model, times how much sharing each counts
  std::vector<float> row_, levels_, by_levels_;
};

}  // namespace

void rescored_page(const Lanes& lanes, const RescoredPage& page, const PageParts& parts) {
  for (int64_t q = 0, first = 0; q < page.m; first += page.counts[q++]) PageQuery(page, q, first, parts).run(lanes);
}

void arrange_page(const PageHits& hits, int64_t k, float* scores, int64_t* ids, uint8_t* placed) {
  const int planes = (hits.bits + 7) / 8;
  std::vector<int64_t> order(hits.pages), moved;
  const uint8_t* codes = hits.end_codes;
  const int64_t* end_ids = hits.end_ids;
  for (int64_t q = 0; q < hits.m; ++q) {
    const int64_t* counts = hits.end_counts + 3 * q;
    const int64_t from = q * hits.n, ends = counts[0] + counts[1] + counts[2];
    const float* again = hits.page_scores + q * hits.pages;
    const int64_t* tiers = hits.tiers + q * hits.pages;
    std::iota(order.begin(), order.end(), 0);
    const int64_t depth = std::min(hits.pages, k + ends);  // those further back cannot matter
    std::partial_sort(order.begin(), order.begin() + depth, order.end(), [&](int64_t a, int64_t b) {
      const bool missing_a = hits.ids[from + a] < 0, missing_b = hits.ids[from + b] < 0;
      if (missing_a != missing_b) return missing_b;
      if (tiers[a] != tiers[b]) return tiers[a] < tiers[b];
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
      const Losses losses(hits.weights + q * hits.bits, hits.bits);
      for (int64_t i = 0; i < count; ++i, ++end_ids, codes += planes) put(losses.score(codes, 1), *end_ids, place);
    };
    put_ends(counts[0], kLiked);
    put_ends(counts[1], kNear);
    for (int64_t i = 0; i < hits.n && to < stop; ++i) {
      const int64_t at = from + (i < hits.pages ? order[i] : i);
      if (hits.ids[at] >= 0 && !std::binary_search(moved.begin(), moved.end(), hits.ids[at]))
        put(hits.scores[at], hits.ids[at], i < hits.pages ? kByLabels : kByScore);
    }
    put_ends(counts[2], kDisliked);
  }
}

}  // namespace stillhash
