// The bound of a strip of tiles, in SIMD: for each code, the saturating sum of its nibbles' quantised losses
// (one byte shuffle looks up a nibble of every lane), compared with the query's limit. Included after the
// wrapper `Simd` of one instruction set.

namespace stillhash {
namespace {

// Adds the losses of planes [from, to) of W registers of codes.
template <int Q, int W>
inline void add_planes(const uint8_t* codes, int from, int to, const Bound* bounds, typename Simd::V (*sum)[W]) {
  using V = typename Simd::V;
  const V low = Simd::splat(15);
  for (int j = from; j < to; ++j) {
    const uint8_t* plane = codes + static_cast<size_t>(j) * kTile;
    if constexpr (Q <= 2) {  // each register of codes in turn: only sums and tables stay in registers
      V t0[Q], t1[Q];
      for (int q = 0; q < Q; ++q) {
        t0[q] = Simd::table(bounds[q].table + j * 32);
        t1[q] = Simd::table(bounds[q].table + j * 32 + 16);
      }
      for (int w = 0; w < W; ++w) {
        const V v = Simd::load(plane + w * Simd::kLanes);
        const V lo = Simd::both(v, low), hi = Simd::both(Simd::high_nibble(v), low);
        for (int q = 0; q < Q; ++q)
          sum[q][w] = Simd::add(Simd::add(sum[q][w], Simd::lookup(t0[q], lo)), Simd::lookup(t1[q], hi));
      }
    } else {
      V lo[W], hi[W];
      for (int w = 0; w < W; ++w) {
        const V v = Simd::load(plane + w * Simd::kLanes);
        lo[w] = Simd::both(v, low);
        hi[w] = Simd::both(Simd::high_nibble(v), low);
      }
      for (int q = 0; q < Q; ++q) {
        const V t0 = Simd::table(bounds[q].table + j * 32), t1 = Simd::table(bounds[q].table + j * 32 + 16);
        for (int w = 0; w < W; ++w)
          sum[q][w] = Simd::add(Simd::add(sum[q][w], Simd::lookup(t0, lo[w])), Simd::lookup(t1, hi[w]));
      }
    }
  }
}

// Open queries, and after them selective ones. For these, half of the planes mostly show that none of the codes at hand
// can be a hit, since sums only grow; then the other half is left out. Open queries beside them read it all the same:
// where parts of memory are skipped, the processor does not fetch ahead (Zen 4, 10M x 64 bits: 2.7 times as slow).
template <int Open, int Selective, int W>
void filter_group(const uint8_t* tiles, int count, int planes, const Bound* bounds, uint64_t (*survivors)[kWords],
                  const uint8_t* ahead) {
  using V = typename Simd::V;
  constexpr int L = Simd::kLanes, Q = Open + Selective;
  static_assert(kTile % (W * L) == 0, "a tile is whole steps of W registers");
  static_assert(Open > 0, "selective queries skip planes only where an open one reads them");
  V limit[Q];
  for (int q = 0; q < Q; ++q) limit[q] = Simd::splat(static_cast<char>(bounds[q].limit));
  const int first = Selective ? planes / 2 : planes;
  for (int row = 0; row < count * kTile; row += W * L) {
    const uint8_t* codes = tiles + static_cast<size_t>(row / kTile) * planes * kTile + row % kTile;
    V sum[Q][W];
    for (int q = 0; q < Q; ++q)
      for (int w = 0; w < W; ++w) sum[q][w] = Simd::zero();
    if (ahead)  // as many bytes as this step reads
      for (int at = row * planes; at < (row + W * L) * planes; at += 64) __builtin_prefetch(ahead + at);
    add_planes<Q, W>(codes, 0, first, bounds, sum);
    if constexpr (Selective > 0) {
      bool near = false;
      for (int q = Open; q < Q; ++q) {
        V least = sum[q][0];
        for (int w = 1; w < W; ++w) least = Simd::lower(least, sum[q][w]);
        near |= Simd::any_at_most(least, limit[q]);
      }
      if (near) add_planes<Q, W>(codes, first, planes, bounds, sum);
      else add_planes<Open, W>(codes, first, planes, bounds, sum);
    }
    for (int q = 0; q < Q; ++q)
      for (int w = 0; w < W; ++w) Simd::store_at_most(survivors[q], row + w * L, sum[q][w], limit[q]);
  }
}

// How many registers of codes a step takes is what measured fastest with this set's number of registers.
void filter(const uint8_t* tiles, int count, int planes, const Bound* bounds, int open, int selective,
            uint64_t (*survivors)[kWords], const uint8_t* ahead) {
  switch (open * 10 + selective) {
    case 1:
    case 10: return filter_group<1, 0, Simd::kAlone>(tiles, count, planes, bounds, survivors, ahead);
    case 2:
    case 20: return filter_group<2, 0, 4>(tiles, count, planes, bounds, survivors, ahead);
    case 30: return filter_group<3, 0, 2>(tiles, count, planes, bounds, survivors, ahead);
    case 40: return filter_group<4, 0, 2>(tiles, count, planes, bounds, survivors, ahead);
    case 11: return filter_group<1, 1, 4>(tiles, count, planes, bounds, survivors, ahead);
    case 22: return filter_group<2, 2, 2>(tiles, count, planes, bounds, survivors, ahead);
  }
}

}  // namespace
}  // namespace stillhash
