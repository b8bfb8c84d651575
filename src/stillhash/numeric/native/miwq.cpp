#include "miwq.hpp"

#include <cstring>

namespace stillhash {
namespace {

constexpr int kSteps = 64;      // bands that a table's losses are cut into
constexpr size_t kBuffer = 2048; // buckets collected before they are read, so that memory can be fetched ahead
constexpr double kPast = 1e-12;
constexpr double kCheck = 0.08;  // share of the budget after which the rest is estimated; again at each doubling
constexpr double kCommit = 0.3;  // up to this share: beyond it, finishing is cheaper
constexpr double kTolerance = 2;      // times the budget that the whole may cost by the first estimate: the floor is still
                                 // poor, and will rise; half of that by the second

uint32_t value_of(const uint8_t* code, int planes, int at, int width) {
  uint64_t word = 0;
  const int byte = at / 8;
  std::memcpy(&word, code + byte, std::min(8, planes - byte));
  return static_cast<uint32_t>(word >> (at % 8) & ((uint64_t{1} << width) - 1));
}

struct Pattern {
  double loss;
  uint32_t bits;  // which bits disagree with the best value
};

// All 2^width patterns of bits [at, at + width) in order of loss, by merging: each bit doubles the sorted list.
std::vector<Pattern> sorted_patterns(const double* weights, int at, int width, int shift) {
  std::vector<Pattern> list{{0, 0}}, doubled;
  for (int i = 0; i < width; ++i) {
    const double cost = 2 * std::fabs(weights[at + i]);
    const uint32_t bit = uint32_t{1} << (shift + i);
    doubled.resize(2 * list.size());
    size_t a = 0, b = 0;
    for (Pattern& out : doubled) {
      if (b == list.size() || (a < list.size() && list[a].loss <= list[b].loss + cost)) out = list[a++];
      else {
        out = {list[b].loss + cost, list[b].bits | bit};
        ++b;
      }
    }
    list.swap(doubled);
  }
  return list;
}

// The buckets of one table in bands of rising loss. The substring is cut in halves, each with its patterns sorted;
// a pattern of the whole is a pair, and the pairs of a band lie along a staircase that is walked without a heap.
struct Staircase {
  std::vector<Pattern> left, right;
  std::vector<uint32_t> next;  // for each left pattern, the first right pattern not yet probed
  uint32_t best = 0;           // the value that loses nothing
  double frontier = 0;         // every value that loses less has been probed
  double most = 0;             // what the worst value loses
  double rate = 0;             // price of the last band per unit of loss; tables where progress is cheap go first

  Staircase(const double* weights, const Table& table) {
    const int half = table.width / 2;
    left = sorted_patterns(weights, table.at, half, 0);
    right = sorted_patterns(weights, table.at + half, table.width - half, half);
    next.assign(left.size(), 0);
    for (int i = 0; i < table.width; ++i) best |= static_cast<uint32_t>(weights[table.at + i] >= 0) << i;
    most = left.back().loss + right.back().loss;
  }

  bool exhausted() const { return frontier > most; }

  // Values whose loss is below a bound.
  double below(double bound) const {
    double count = 0;
    size_t r = right.size();
    for (const Pattern& l : left) {
      while (r > 0 && l.loss + right[r - 1].loss >= bound) --r;
      if (r == 0) break;
      count += static_cast<double>(r);
    }
    return count;
  }
};

// Probes that raise the sum of the frontiers to `loss`, if all tables rise by equal shares of what they can.
double probes_between(const std::vector<Staircase>& stairs, double loss) {
  double reached = 0, remaining = 0;
  for (const Staircase& s : stairs) {
    reached += s.frontier;
    remaining += std::max(0.0, s.most - s.frontier);
  }
  if (loss <= reached || remaining == 0) return 0;
  const double share = std::min(1.0, (loss - reached) / remaining);
  double probes = 0;
  for (const Staircase& s : stairs)
    probes += s.below(s.frontier + share * std::max(0.0, s.most - s.frontier)) - s.below(s.frontier);
  return probes;
}

class Search {
 public:
  Search(const std::vector<Table>& tables, const Slots& slots, const double* weights, int bits, Ranking& ranking)
      : tables_(tables), slots_(slots), ranking_(ranking), planes_((bits + 7) / 8), byte_loss_(planes_ * 256) {
    for (const Table& table : tables) stairs_.emplace_back(weights, table);
    const std::vector<double>& nibbles = ranking.losses().table;
    for (int j = 0; j < planes_; ++j)
      for (int v = 0; v < 256; ++v)
        byte_loss_[j * 256 + v] = nibbles[j * 32 + (v & 15)] + nibbles[j * 32 + 16 + (v >> 4)];
  }

  Effort run(const Price& price) {
    double check = kCheck * price.budget, tolerance = kTolerance;
    std::vector<uint32_t> values;
    values.reserve(kBuffer);
    for (;;) {
      double reached = 0;
      int cheapest = -1;
      for (size_t t = 0; t < stairs_.size(); ++t) {
        if (stairs_[t].exhausted()) return done();
        reached += stairs_[t].frontier;
        if (stairs_[t].most > 0 && (cheapest < 0 || stairs_[t].rate < stairs_[cheapest].rate))
          cheapest = static_cast<int>(t);
      }
      const double admissible = ranking_.admissible_loss();
      if (reached > admissible) return done();
      if (cheapest < 0) return effort_;  // all weights are zero: all rows tie
      const double spent = effort_.probes * price.probe + effort_.rows * price.row;
      if (spent > price.budget) return effort_;
      if (spent > check && std::isfinite(admissible)) {
        // The floor only rises from here, so this is about the most that the rest can cost.
        check = 2 * spent < kCommit * price.budget ? 2 * spent : std::numeric_limits<double>::infinity();
        const double per_probe = price.probe + price.row * effort_.rows / std::max<int64_t>(1, effort_.probes);
        if (spent + probes_between(stairs_, admissible) * per_probe > tolerance * price.budget) return effort_;
        tolerance /= 2;
      }
      Staircase& s = stairs_[cheapest];
      double to = s.frontier + s.most / kSteps;
      // No further than needed; a little past it, so that rounding cannot leave the sum just short.
      to = std::min(to, s.frontier + (admissible - reached) + kPast * admissible);
      if (s.frontier + s.most / kSteps > s.most) to = std::max(to, std::nextafter(s.most, 2 * s.most));
      const int64_t probes = effort_.probes, rows = effort_.rows;
      for (size_t l = 0; l < s.left.size() && s.left[l].loss < to; ++l) {
        uint32_t r = s.next[l];
        while (r < s.right.size() && s.left[l].loss + s.right[r].loss < to) {
          values.push_back(s.best ^ (s.left[l].bits | s.right[r].bits));
          ++r;
          if (values.size() == kBuffer) probe(cheapest, values);
        }
        s.next[l] = r;
      }
      probe(cheapest, values);
      const double cost = (effort_.probes - probes) * price.probe + (effort_.rows - rows) * price.row;
      s.rate = effort_.probes == probes ? s.rate / 2 : cost / (to - s.frontier);
      s.frontier = to;
    }
  }

 private:
  Effort done() {
    effort_.complete = true;
    return effort_;
  }

  void probe(int t, std::vector<uint32_t>& values) {
    switch (planes_) {  // the usual code lengths, unrolled
      case 2: return probe_planes<2>(t, values);
      case 4: return probe_planes<4>(t, values);
      case 8: return probe_planes<8>(t, values);
      default: return probe_planes<0>(t, values);
    }
  }

  template <int Planes>
  void probe_planes(int t, std::vector<uint32_t>& values) {
    const int planes = Planes ? Planes : planes_;
    const Table& table = tables_[t];
    const double* byte_loss = byte_loss_.data();
    const size_t n = values.size();
    double admissible = ranking_.admissible_loss();
    for (size_t i = 0; i < n; ++i) {
      if (i + 24 < n) __builtin_prefetch(table.starts + values[i + 24]);
      if (i + 10 < n) __builtin_prefetch(table.codes + static_cast<size_t>(table.starts[values[i + 10]]) * planes);
      const uint32_t from = table.starts[values[i]], to = table.starts[values[i] + 1];
      const uint8_t* code = table.codes + static_cast<size_t>(from) * planes;
      for (uint32_t r = from; r < to; ++r, code += planes) {
        double loss = 0;
        for (int j = 0; j < planes; ++j) loss += byte_loss[j * 256 + code[j]];
        if (loss > admissible) continue;
        offer(t, table.slots[r], code, loss);
        admissible = ranking_.admissible_loss();
      }
      effort_.rows += to - from;
    }
    effort_.probes += static_cast<int64_t>(n);
    values.clear();
  }

  void offer(int t, uint32_t slot, const uint8_t* code, double loss) {
    // Seen before, through another table, exactly if that table has already been probed past this row's value.
    for (size_t u = 0; u < tables_.size(); ++u)
      if (static_cast<int>(u) != t && loss_in(u, code) < stairs_[u].frontier) return;
    if (slots_.live && !(slots_.live[slot / 8] >> (slot % 8) & 1)) return;
    const float score = static_cast<float>(ranking_.losses().best - loss);
    ranking_.offer(score, slots_.ids ? slots_.ids[slot] : slots_.first + slot);
  }

  double loss_in(size_t u, const uint8_t* code) const {
    const Table& table = tables_[u];
    const Losses& losses = ranking_.losses();
    const uint32_t differs = value_of(code, planes_, table.at, table.width) ^ stairs_[u].best;
    double loss = 0;
    for (uint32_t bits = differs; bits; bits &= bits - 1) loss += losses.bit[table.at + __builtin_ctz(bits)];
    return loss;
  }

  const std::vector<Table>& tables_;
  const Slots& slots_;
  Ranking& ranking_;
  int planes_;
  std::vector<double> byte_loss_;
  std::vector<Staircase> stairs_;
  Effort effort_;
};

}  // namespace

// A counting sort in two strides: first by the value's high bits into a few hundred runs, then each run, which by then
// fits the cache, by the low bits. One stride over millions of buckets would miss the cache at every row.
void fill_table(const uint8_t* codes, const uint32_t* from, int64_t n, int planes, int at, int width, uint32_t* starts,
                uint32_t* slots, uint8_t* sorted) {
  const int low = std::max(0, width - 9);
  const size_t runs = size_t{1} << (width - low), values = size_t{1} << low;
  const auto value = [&](const uint8_t* code) { return value_of(code, planes, at, width); };
  std::vector<uint32_t> run(runs + 1), place;
  for (int64_t i = 0; i < n; ++i) ++run[(value(codes + i * planes) >> low) + 1];
  for (size_t v = 0; v < runs; ++v) run[v + 1] += run[v];
  place.assign(run.begin(), run.end() - 1);
  std::vector<uint32_t> run_slots(n);
  std::vector<uint8_t> run_codes(static_cast<size_t>(n) * planes);
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t* code = codes + i * planes;
    const uint32_t p = place[value(code) >> low]++;
    run_slots[p] = from[i];
    std::memcpy(run_codes.data() + static_cast<size_t>(p) * planes, code, planes);
  }
  for (size_t v = 0; v < runs; ++v) {
    uint32_t* here = starts + v * values;  // starts of this run's buckets; the next run overwrites the last one
    std::fill(here, here + values + 1, 0);
    for (uint32_t p = run[v]; p < run[v + 1]; ++p)
      ++here[(value(run_codes.data() + static_cast<size_t>(p) * planes) & (values - 1)) + 1];
    here[0] = run[v];
    for (size_t w = 0; w < values; ++w) here[w + 1] += here[w];
    place.assign(here, here + values);
    for (uint32_t p = run[v]; p < run[v + 1]; ++p) {
      const uint8_t* code = run_codes.data() + static_cast<size_t>(p) * planes;
      const uint32_t to = place[value(code) & (values - 1)]++;
      slots[to] = run_slots[p];
      std::memcpy(sorted + static_cast<size_t>(to) * planes, code, planes);
    }
  }
}

Effort miwq(const std::vector<Table>& tables, const Slots& slots, const double* weights, int bits, Ranking& ranking,
            const Price& price) {
  return Search(tables, slots, weights, bits, ranking).run(price);
}

}  // namespace stillhash
