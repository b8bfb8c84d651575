// The bound of a tile of codes, in SIMD: for each code, the saturating sum of its nibbles' quantised losses
// (one byte shuffle looks up a nibble of every lane), compared with the query's limit. Included after the
// wrapper `Simd` of one instruction set.

namespace stillhash {
namespace {

// Adds the losses of planes [from, to) of W registers of codes.
template <int Q, int W>
inline void add_planes(const uint8_t* codes, int from, int to, const Bound* bounds, typename Simd::V (&sum)[Q][W]) {
  using V = typename Simd::V;
  const V low = Simd::splat(15);
  for (int j = from; j < to; ++j) {
    const uint8_t* plane = codes + static_cast<size_t>(j) * kTile;
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

// For selective queries, half of the planes mostly show that none of the codes at hand can be a hit, since sums only
// grow; then the other half is left out.
template <int Q, int W, bool Selective>
inline void filter_group(const uint8_t* tile, int planes, const Bound* bounds, uint64_t (*survivors)[kWords],
                         const uint8_t* ahead) {
  using V = typename Simd::V;
  constexpr int L = Simd::kLanes;
  V limit[Q];
  for (int q = 0; q < Q; ++q) limit[q] = Simd::splat(static_cast<char>(bounds[q].limit));
  for (int c = 0; c < kTile; c += W * L) {
    V sum[Q][W];
    for (int q = 0; q < Q; ++q)
      for (int w = 0; w < W; ++w) sum[q][w] = Simd::zero();
    if (ahead)
      for (int64_t line = static_cast<int64_t>(c) * planes; line < static_cast<int64_t>(c + W * L) * planes; line += 64)
        __builtin_prefetch(ahead + line);
    const int first = Selective ? planes / 2 : planes;
    add_planes<Q, W>(tile + c, 0, first, bounds, sum);
    if constexpr (Selective) {
      bool open = false;
      for (int q = 0; q < Q; ++q) {
        V least = sum[q][0];
        for (int w = 1; w < W; ++w) least = Simd::lower(least, sum[q][w]);
        open |= Simd::any_at_most(least, limit[q]);
      }
      if (open) add_planes<Q, W>(tile + c, first, planes, bounds, sum);
    }
    for (int q = 0; q < Q; ++q)
      for (int w = 0; w < W; ++w) Simd::store_at_most(survivors[q], c + w * L, sum[q][w], limit[q]);
  }
}

template <bool Selective>
void filter_queries(const uint8_t* tile, int planes, const Bound* bounds, int queries, uint64_t (*survivors)[kWords],
                    const uint8_t* ahead) {
  switch (queries) {
    case 1: return filter_group<1, 4, Selective>(tile, planes, bounds, survivors, ahead);
    case 2: return filter_group<2, 4, Selective>(tile, planes, bounds, survivors, ahead);
    case 3: return filter_group<3, 2, Selective>(tile, planes, bounds, survivors, ahead);
    default: return filter_group<4, 2, Selective>(tile, planes, bounds, survivors, ahead);
  }
}

void filter(const uint8_t* tile, int planes, const Bound* bounds, int queries, bool selective,
            uint64_t (*survivors)[kWords], const uint8_t* ahead) {
  return (selective ? filter_queries<true> : filter_queries<false>)(tile, planes, bounds, queries, survivors, ahead);
}

}  // namespace
}  // namespace stillhash
