#include "scan.hpp"

#include <atomic>
#include <cstring>

#include "cpu.hpp"
#include "tiles.hpp"
#include "workers.hpp"

namespace stillhash {
namespace {

constexpr int64_t kBatch = 32;           // queries that share a pass over memory
constexpr int64_t kThreadWork = 1 << 22; // table look-ups (bytes x queries) that are worth a thread
constexpr int64_t kClaim = 128;          // tiles that a thread scans at a time, where there are several
constexpr int kMaxPlanes = 64;           // bytes of the longest code
constexpr int64_t kChunk = 64;           // tiles that are skipped, scored row by row, or filtered, together
constexpr int64_t kFewLive = 32;         // live rows of a whole chunk up to which each is scored alone: 0.2 %,
constexpr int64_t kFewLiveForMany = 192; // and with so many queries, which share the cost of reading it, 1.2 %
constexpr int64_t kManyQueries = 8;
constexpr size_t kRowsAhead = 8;         // of them that are fetched ahead
constexpr int64_t kSampleStep = 32;      // one strip of so many is in the sample that estimates floors
constexpr int64_t kSampleHits = 64;      // hits from which a sample pays
constexpr int64_t kSampleStrips = 8;     // strips of the smallest sample

struct Span {  // the tiles [from, to) of all blocks laid end to end
  int64_t from, to;
};

int64_t tiles_of(const Block& block) { return (block.rows + kTile - 1) / kTile; }

const uint8_t* code_of(const Block& block, int64_t row, int planes) { return block.tiles + place_of(row, planes); }

// Which of the 64 rows from this one on are live.
uint64_t live_word(const Block& block, int64_t row) {
  uint64_t live;
  std::memcpy(&live, block.live + row / 8, 8);
  return live;
}

// Offers the surviving rows of a strip from this row on. A row survives if its bound does, it exists and is live.
void rescore(Ranking& ranking, const Block& block, int64_t row, int words, const uint64_t* survivors) {
  uint64_t any = 0;
  for (int word = 0; word < words; ++word) any |= survivors[word];
  if (!any) return;
  const int planes = ranking.losses().planes;
  for (int word = 0; word < words; ++word, row += 64) {
    uint64_t bits = survivors[word];
    const int64_t left = block.rows - row;
    if (bits == 0 || left <= 0) continue;
    if (left < 64) bits &= (uint64_t{1} << left) - 1;
    if (block.live) bits &= live_word(block, row);
    const uint8_t* codes = code_of(block, row, planes);
    for (; bits; bits &= bits - 1) {
      const int c = __builtin_ctzll(bits);
      ranking.offer(ranking.losses().score(codes + c, kTile), block.ids ? block.ids[row + c] : block.first + row + c);
    }
  }
}

int64_t count_live(const Block& block, Span tiles) {
  int64_t count = 0;
  for (int64_t row = tiles.from * kTile; row < tiles.to * kTile; row += 64)
    count += __builtin_popcountll(live_word(block, row));
  return count;
}

// Whether the bound of a code, its bytes one after another, lets it be a hit.
bool admits(const Bound& bound, const uint8_t* code, int planes) {
  unsigned sum = 0;
  for (int j = 0; j < planes; ++j)
    sum += bound.table[j * 32 + (code[j] & 15)] + bound.table[j * 32 + 16 + (code[j] >> 4)];
  return std::min(sum, 255u) <= bound.limit;
}

void collect_rows(const Block& block, Span tiles, std::vector<int64_t>& rows) {
  rows.clear();
  for (int64_t from = tiles.from * kTile; from < tiles.to * kTile; from += 64)
    for (uint64_t live = live_word(block, from); live; live &= live - 1)
      if (const int64_t row = from + __builtin_ctzll(live); row < block.rows) rows.push_back(row);
}

// Offers these rows to all rankings, one by one. They are far apart in memory, so each is fetched ahead.
void score_rows(const Block& block, const std::vector<int64_t>& rows, int64_t queries, Ranking* rankings) {
  const int planes = rankings[0].losses().planes;
  uint8_t code[kMaxPlanes];
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kRowsAhead < rows.size())
      for (int j = 0; j < planes; ++j) __builtin_prefetch(code_of(block, rows[i + kRowsAhead], planes) + j * kTile);
    const int64_t row = rows[i];
    read_code(block.tiles, row, planes, code);
    for (int64_t q = 0; q < queries; ++q)
      if (admits(rankings[q].bound(), code, planes))
        rankings[q].offer(rankings[q].losses().score(code, 1), block.ids ? block.ids[row] : block.first + row);
  }
}

// Queries that share one pass over a strip: from number `first` on, open ones, then selective ones with few hits.
struct Group {
  int64_t first;
  int open, selective;
  int64_t end() const { return first + open + selective; }
};

// Groups that `lanes.filter` takes; `order` are the queries in the order of the groups.
std::vector<Group> group_queries(const std::vector<int64_t>& open, const std::vector<int64_t>& selective,
                                 std::vector<int64_t>& order) {
  std::vector<Group> groups;
  for (size_t a = 0, b = 0; a < open.size() || b < selective.size();) {
    size_t opens = open.size() - a, others = selective.size() - b;  // left
    if (opens && others) opens = others = std::min({opens, others, size_t{2}});
    else opens = std::min(opens, size_t{kGroup}), others = std::min(others, size_t{2});
    groups.push_back({static_cast<int64_t>(order.size()), static_cast<int>(opens), static_cast<int>(others)});
    order.insert(order.end(), open.begin() + a, open.begin() + a + opens);
    order.insert(order.end(), selective.begin() + b, selective.begin() + b + others);
    a += opens, b += others;
  }
  return groups;
}

// Fetches one of `parts` equal parts of these bytes into the second-level cache; the first holds the present strip.
void fetch_part(const uint8_t* bytes, int64_t count, int64_t part, int64_t parts) {
  for (int64_t at = count * part / parts / 64 * 64; at < count * (part + 1) / parts; at += 64)
    __builtin_prefetch(bytes + at, 0, 2);
}

// Whether this processor must be told to fetch ahead where a scan reads straight through.
bool needs_fetching() {
#ifdef STILLHASH_X86
  return this_cpu().intel;
#else
  return false;
#endif
}

const bool fetches_ahead = needs_fetching();

// Floors are shared between threads, where there are several: the k-th best score one thread has reached bounds what
// the others need to keep.
void take_floors(Ranking* rankings, int64_t count, const std::atomic<float>* floors) {
  for (int64_t i = 0; i < count; ++i) rankings[i].raise_floor(floors[i].load(std::memory_order_relaxed));
}

void share_floors(const Ranking* rankings, int64_t count, std::atomic<float>* floors) {
  for (int64_t i = 0; i < count; ++i)
    if (rankings[i].floor() > floors[i].load(std::memory_order_relaxed))
      floors[i].store(rankings[i].floor(), std::memory_order_relaxed);
}

// The queries of all groups over a strip of a block: from tile t on, at `tiles`, and followed by `next` tiles.
void filter_strip(const Lanes& lanes, const Block& block, int64_t t, int strip, const uint8_t* tiles, int64_t next,
                  const std::vector<Group>& groups, Ranking* rankings, std::atomic<float>* floors) {
  uint64_t survivors[kGroup][kWords];
  Bound bounds[kGroup];
  const int planes = rankings[0].losses().planes;
  for (const Group& group : groups) {
    const int64_t q = group.first, count = group.end() - q, part = &group - groups.data();
    if (floors) take_floors(rankings + q, count, floors + q);
    for (int i = 0; i < count; ++i) bounds[i] = rankings[q + i].bound();
    // Intel's processors must be told to fetch the next strip. Zen 4 fetches ahead by itself where one group reads
    // straight through, and is slower if told; several groups read a strip several times, and fetch the next one.
    const uint8_t* after = tiles + strip * planes * kTile;
    if (!fetches_ahead && groups.size() > 1) fetch_part(after, next * planes * kTile, part, groups.size());
    const uint8_t* ahead = fetches_ahead && q == 0 && next == kStrip ? after : nullptr;
    lanes.filter(tiles, strip, planes, bounds, group.open, group.selective, survivors, ahead);
    for (int i = 0; i < count; ++i) rescore(rankings[q + i], block, t * kTile, strip * kTile / 64, survivors[i]);
    if (floors) share_floors(rankings + q, count, floors + q);
  }
}

// The same over a span of the tiles of one block, read straight through. A last tile that is not full is filtered in a
// copy, which has only the rows of this block: another thread may be writing later rows to the same tile.
void filter_tiles(const Lanes& lanes, const Block& block, Span span, const std::vector<Group>& groups,
                  Ranking* rankings, std::atomic<float>* floors) {
  const int64_t planes = rankings[0].losses().planes, bytes = planes * kTile;
  const int64_t full = std::min(span.to, block.rows / kTile);
  for (int64_t t = span.from; t < full; t += kStrip) {
    const int strip = static_cast<int>(std::min<int64_t>(kStrip, full - t));
    const int64_t next = std::min<int64_t>(kStrip, full - t - strip);
    filter_strip(lanes, block, t, strip, block.tiles + t * bytes, next, groups, rankings, floors);
  }
  if (full == span.to) return;
  alignas(64) uint8_t last[kMaxPlanes * kTile];
  const int64_t rows = block.rows % kTile;
  for (int j = 0; j < planes; ++j) {
    std::memcpy(last + j * kTile, block.tiles + full * bytes + j * kTile, rows);
    std::memset(last + j * kTile + rows, 0, kTile - rows);
  }
  filter_strip(lanes, block, full, 1, last, 0, groups, rankings, floors);
}

// The same where not all rows are live: chunks without live rows are skipped, and of chunks with few these are scored
// alone. All others are read as a whole: to skip single tiles would cost more than to read them.
void scan_tiles(const Lanes& lanes, const Block& block, Span span, const std::vector<Group>& groups, Ranking* rankings,
                std::atomic<float>* floors) {
  if (!block.live) return filter_tiles(lanes, block, span, groups, rankings, floors);
  const int64_t queries = groups.back().end(), few = queries < kManyQueries ? kFewLive : kFewLiveForMany;
  std::vector<int64_t> rows;
  for (Span chunk{span.from, 0}; chunk.from < span.to; chunk.from = chunk.to) {
    chunk.to = std::min(span.to, chunk.from + kChunk);
    const int64_t live = count_live(block, chunk);
    if (live * kChunk > few * (chunk.to - chunk.from)) filter_tiles(lanes, block, chunk, groups, rankings, floors);
    else if (live > 0) {
      collect_rows(block, chunk, rows);
      if (floors) take_floors(rankings, queries, floors);
      score_rows(block, rows, queries, rankings);
      if (floors) share_floors(rankings, queries, floors);
    }
  }
}

void scan_span(const Lanes& lanes, const std::vector<Block>& blocks, Span span, const std::vector<Group>& groups,
               Ranking* rankings, std::atomic<float>* floors) {
  int64_t start = 0;
  for (const Block& block : blocks) {
    const int64_t end = start + tiles_of(block);
    const int64_t from = std::max(span.from, start), to = std::min(span.to, end);
    if (from < to) scan_tiles(lanes, block, {from - start, to - start}, groups, rankings, floors);
    start = end;
  }
}

// One strip in kSampleStep of the tiles of all blocks laid end to end.
void scan_sample(const Lanes& lanes, const std::vector<Block>& blocks, const std::vector<Group>& groups,
                 Ranking* rankings) {
  constexpr int64_t step = kSampleStep * kStrip;
  int64_t start = 0;
  for (const Block& block : blocks) {
    const int64_t tiles = tiles_of(block);
    for (int64_t t = (step - start % step) % step; t < tiles; t += step)
      scan_tiles(lanes, block, {t, std::min(tiles, t + kStrip)}, groups, rankings, nullptr);
    start += tiles;
  }
}

// Floors that about twice as many rows reach as there are hits, by a sample of the strips: the more hits, the longer it
// takes until the best k so far prune much. An estimate may be too high for some query; then it has too few hits.
void estimate_floors(const Lanes& lanes, const std::vector<Block>& blocks, int64_t tiles, const double* weights,
                     int bits, const std::vector<int64_t>& queries, int64_t k, float* floors) {
  if (queries.empty() || k < kSampleHits || tiles < kSampleStrips * kSampleStep * kStrip) return;
  const double share = static_cast<double>(k) / kSampleStep;
  const int64_t wanted = static_cast<int64_t>(share + 3 * std::sqrt(share) + 2);
  std::vector<int64_t> order;
  const std::vector<Group> groups = group_queries(queries, {}, order);
  std::vector<Losses> losses;
  std::vector<Ranking> rankings;
  losses.reserve(order.size());
  for (const int64_t q : order) losses.emplace_back(weights + q * bits, bits);
  for (size_t i = 0; i < order.size(); ++i) rankings.emplace_back(losses[i], wanted, floors[order[i]]);
  scan_sample(lanes, blocks, groups, rankings.data());
  for (size_t i = 0; i < order.size(); ++i) floors[order[i]] = rankings[i].floor();
}

}  // namespace

std::vector<std::vector<Hit>> scan(const Lanes& lanes, const std::vector<Block>& blocks, int bits,
                                   const double* weights, int64_t queries, int64_t k, const float* floors,
                                   const float* ceilings, int threads, bool sampled) {
  int64_t tiles = 0;
  for (const Block& block : blocks) tiles += tiles_of(block);
  std::vector<std::vector<Hit>> out(queries);
  std::vector<float> starts(floors, floors + queries);
  for (int64_t q0 = 0; q0 < queries; q0 += kBatch) {
    const int64_t count = std::min(kBatch, queries - q0);
    std::vector<int64_t> open, selective, order;
    for (int64_t q = q0; q < q0 + count; ++q) (ceilings[q] == kNoCeiling ? open : selective).push_back(q);
    const std::vector<Group> groups = group_queries(open, selective, order);
    std::vector<Losses> losses;
    losses.reserve(count);
    for (const int64_t q : order) losses.emplace_back(weights + q * bits, bits);
    const int64_t work = tiles * kTile * losses[0].planes * count;
    const int64_t workers = std::max<int64_t>(1, std::min<int64_t>({threads, tiles, work / kThreadWork}));
    if (sampled) estimate_floors(lanes, blocks, tiles, weights, bits, open, k, starts.data());
    std::vector<std::vector<Ranking>> rankings(workers);
    for (auto& mine : rankings)
      for (int64_t i = 0; i < count; ++i) mine.emplace_back(losses[i], k, starts[order[i]], ceilings[order[i]]);
    std::vector<std::atomic<float>> shared(count);
    for (int64_t i = 0; i < count; ++i) shared[i] = starts[order[i]];
    const int64_t claim = workers > 1 ? kClaim : tiles;
    std::atomic<int64_t> next{0};  // the first tile that no thread has claimed
    on_threads(workers, [&](int64_t w) {
      for (int64_t from; (from = next.fetch_add(claim)) < tiles;)
        scan_span(lanes, blocks, {from, std::min(tiles, from + claim)}, groups, rankings[w].data(),
                  workers > 1 ? shared.data() : nullptr);
    });
    for (int64_t i = 0; i < count; ++i) {
      const int64_t q = order[i];
      auto& hits = out[q];
      for (auto& mine : rankings) hits.insert(hits.end(), mine[i].hits().begin(), mine[i].hits().end());
      std::sort(hits.begin(), hits.end(), better);
      if (k >= 0 && static_cast<int64_t>(hits.size()) > k) hits.resize(k);
      while (!hits.empty() && hits.back().score < std::min(hits.front().score, ceilings[q])) hits.pop_back();
      if (static_cast<int64_t>(hits.size()) < k && starts[q] > floors[q])  // the estimate was too high
        hits = scan(lanes, blocks, bits, weights + q * bits, 1, k, floors + q, ceilings + q, threads, false)[0];
    }
  }
  return out;
}

}  // namespace stillhash
