// The bound of a tile of codes, in SIMD: for each code, the saturating sum of its nibbles' quantised losses
// (one byte shuffle looks up a nibble of every lane), compared with the query's limit. Included after the
// wrapper `Simd` of one instruction set.

namespace stillhash {
namespace {

template <int Q, int W>
inline void filter_group(const uint8_t* tile, int planes, const Bound* bounds, uint64_t (*survivors)[kWords],
                         const uint8_t* ahead) {
  using V = typename Simd::V;
  constexpr int L = Simd::kLanes;
  const V low = Simd::splat(15);
  for (int c = 0; c < kTile; c += W * L) {
    V sum[Q][W];
    for (int q = 0; q < Q; ++q)
      for (int w = 0; w < W; ++w) sum[q][w] = Simd::zero();
    if (ahead)
      for (int64_t line = static_cast<int64_t>(c) * planes; line < static_cast<int64_t>(c + W * L) * planes; line += 64)
        __builtin_prefetch(ahead + line);
    for (int j = 0; j < planes; ++j) {
      const uint8_t* plane = tile + static_cast<size_t>(j) * kTile + c;
      V lo[W], hi[W];
      for (int w = 0; w < W; ++w) {
        const V v = Simd::load(plane + w * L);
        lo[w] = Simd::both(v, low);
        hi[w] = Simd::both(Simd::high_nibble(v), low);
      }
      for (int q = 0; q < Q; ++q) {
        const V t0 = Simd::table(bounds[q].table + j * 32), t1 = Simd::table(bounds[q].table + j * 32 + 16);
        for (int w = 0; w < W; ++w)
          sum[q][w] = Simd::add(Simd::add(sum[q][w], Simd::lookup(t0, lo[w])), Simd::lookup(t1, hi[w]));
      }
    }
    for (int q = 0; q < Q; ++q) {
      const V limit = Simd::splat(static_cast<char>(bounds[q].limit));
      for (int w = 0; w < W; ++w) Simd::store_at_most(survivors[q], c + w * L, sum[q][w], limit);
    }
  }
}

void filter(const uint8_t* tile, int planes, const Bound* bounds, int queries, uint64_t (*survivors)[kWords],
            const uint8_t* ahead) {
  switch (queries) {
    case 1: return filter_group<1, 4>(tile, planes, bounds, survivors, ahead);
    case 2: return filter_group<2, 4>(tile, planes, bounds, survivors, ahead);
    case 3: return filter_group<3, 2>(tile, planes, bounds, survivors, ahead);
    default: return filter_group<4, 2>(tile, planes, bounds, survivors, ahead);
  }
}

}  // namespace
}  // namespace stillhash
