#include "scan.hpp"

#include <atomic>
#include <cstring>
#include <numeric>

#include "workers.hpp"

namespace stillhash {
namespace {

constexpr int64_t kBatch = 32;           // queries that share a pass over memory
constexpr int64_t kThreadWork = 1 << 21; // table look-ups (bytes x queries) that are worth a thread
constexpr int64_t kSampleStep = 32;      // one tile of so many is in the sample that estimates floors
constexpr int64_t kSampleHits = 64;      // hits from which a sample pays
constexpr int64_t kSampleTiles = 8;      // tiles of the smallest sample

struct Span {  // the tiles [from, to) of all blocks laid end to end
  int64_t from, to;
};

int64_t tiles_of(const Block& block) { return (block.rows + kTile - 1) / kTile; }

// Offers the surviving rows of one tile. A row survives if its bound does, it exists and is live.
void rescore(Ranking& ranking, const Block& block, const uint8_t* tile, int64_t row, const uint64_t* survivors) {
  for (int word = 0; word < kWords; ++word) {
    uint64_t bits = survivors[word];
    const int64_t left = block.rows - row - word * 64;
    if (bits == 0 || left <= 0) continue;
    if (left < 64) bits &= (uint64_t{1} << left) - 1;
    if (block.live) {
      uint64_t live;
      std::memcpy(&live, block.live + (row / 8) + word * 8, 8);
      bits &= live;
    }
    for (; bits; bits &= bits - 1) {
      const int c = word * 64 + __builtin_ctzll(bits);
      const int64_t r = row + c;
      ranking.offer(ranking.losses().score(tile + c, kTile), block.ids ? block.ids[r] : block.first + r);
    }
  }
}

bool any_live(const Block& block, int64_t row) {
  if (!block.live) return true;
  static const uint8_t none[kTile / 8] = {};
  return std::memcmp(block.live + row / 8, none, sizeof none) != 0;
}

// `count` queries, of which those from `selective` on have few hits, over every step-th tile of a span. Floors are shared
// between threads: the k-th best score one thread has reached bounds what the others need to keep.
void scan_span(const Lanes& lanes, const std::vector<Block>& blocks, Span span, Ranking* rankings, int64_t count,
               int64_t selective, std::atomic<float>* floors, int64_t step = 1) {
  uint64_t survivors[kGroup][kWords];
  Bound bounds[kGroup];
  int64_t start = 0;
  for (const Block& block : blocks) {
    const int64_t tiles = tiles_of(block), end = start + tiles;
    const int64_t from = std::max(span.from, start), to = std::min(span.to, end);
    for (int64_t t = (from + step - 1) / step * step; t < to; t += step) {
      const int64_t row = (t - start) * kTile;
      if (!any_live(block, row)) continue;
      const int planes = rankings[0].losses().planes;
      const int64_t bytes = static_cast<int64_t>(planes) * kTile;
      const uint8_t* tile = block.tiles + (t - start) * bytes;
      const uint8_t* ahead = t + step < to ? tile + step * bytes : nullptr;
      for (int64_t q = 0, group; q < count; q += group) {
        group = std::min<int64_t>(kGroup, (q < selective ? selective : count) - q);
        for (int i = 0; i < group; ++i) {
          if (floors) rankings[q + i].raise_floor(floors[q + i].load(std::memory_order_relaxed));
          bounds[i] = rankings[q + i].bound();
        }
        lanes.filter(tile, planes, bounds, static_cast<int>(group), q >= selective, survivors,
                     q == 0 ? ahead : nullptr);
        for (int i = 0; i < group; ++i) {
          rescore(rankings[q + i], block, tile, row, survivors[i]);
          if (floors && rankings[q + i].floor() > floors[q + i].load(std::memory_order_relaxed))
            floors[q + i].store(rankings[q + i].floor(), std::memory_order_relaxed);
        }
      }
    }
    start = end;
  }
}

// Floors that about twice as many rows reach as there are hits, by a sample of the tiles: the more hits, the longer it
// takes until the best k so far prune much. An estimate may be too high for some query; then it has too few hits.
void estimate_floors(const Lanes& lanes, const std::vector<Block>& blocks, int64_t tiles, const Losses* losses,
                     int64_t count, int64_t k, float* floors) {
  if (count == 0 || k < kSampleHits || tiles < kSampleTiles * kSampleStep) return;
  const double share = static_cast<double>(k) / kSampleStep;
  const int64_t wanted = static_cast<int64_t>(share + 3 * std::sqrt(share) + 2);
  std::vector<Ranking> rankings;
  for (int64_t q = 0; q < count; ++q) rankings.emplace_back(losses[q], wanted, floors[q]);
  scan_span(lanes, blocks, {0, tiles}, rankings.data(), count, count, nullptr, kSampleStep);
  for (int64_t q = 0; q < count; ++q) floors[q] = rankings[q].floor();
}

}  // namespace

std::vector<std::vector<Hit>> scan(const Lanes& lanes, const std::vector<Block>& blocks, int bits,
                                   const double* weights, int64_t queries, int64_t k, const float* floors,
                                   const float* ceilings, int threads, bool sampled) {
  int64_t tiles = 0;
  for (const Block& block : blocks) tiles += tiles_of(block);
  std::vector<std::vector<Hit>> out(queries);
  for (int64_t q0 = 0; q0 < queries; q0 += kBatch) {
    const int64_t count = std::min(kBatch, queries - q0);
    std::vector<int64_t> order(count);  // queries with a ceiling last
    std::iota(order.begin(), order.end(), q0);
    const int64_t open = std::stable_partition(order.begin(), order.end(),
                                               [&](int64_t q) { return ceilings[q] == kNoCeiling; }) - order.begin();
    std::vector<Losses> losses;
    std::vector<float> starts;
    for (const int64_t q : order) {
      losses.emplace_back(weights + q * bits, bits);
      starts.push_back(floors[q]);
    }
    const int64_t work = tiles * kTile * losses[0].planes * count;
    const int64_t workers = std::max<int64_t>(1, std::min<int64_t>({threads, tiles, work / kThreadWork}));
    if (sampled) estimate_floors(lanes, blocks, tiles, losses.data(), open, k, starts.data());
    std::vector<std::vector<Ranking>> rankings(workers);
    for (auto& mine : rankings)
      for (int64_t i = 0; i < count; ++i) mine.emplace_back(losses[i], k, starts[i], ceilings[order[i]]);
    std::vector<std::atomic<float>> shared(count);
    for (int64_t i = 0; i < count; ++i) shared[i] = starts[i];
    on_threads(workers, [&](int64_t w) {
      scan_span(lanes, blocks, {tiles * w / workers, tiles * (w + 1) / workers}, rankings[w].data(), count, open,
                workers > 1 ? shared.data() : nullptr);
    });
    for (int64_t i = 0; i < count; ++i) {
      const int64_t q = order[i];
      auto& hits = out[q];
      for (auto& mine : rankings) hits.insert(hits.end(), mine[i].hits().begin(), mine[i].hits().end());
      std::sort(hits.begin(), hits.end(), better);
      if (k >= 0 && static_cast<int64_t>(hits.size()) > k) hits.resize(k);
      while (!hits.empty() && hits.back().score < std::min(hits.front().score, ceilings[q])) hits.pop_back();
      if (static_cast<int64_t>(hits.size()) < k && starts[i] > floors[q])  // the estimate was too high
        hits = scan(lanes, blocks, bits, weights + q * bits, 1, k, floors + q, ceilings + q, threads, false)[0];
    }
  }
  return out;
}

}  // namespace stillhash
