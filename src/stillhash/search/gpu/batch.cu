// Many queries over all codes, on the int8 tensor cores: appended to layout.cu, for QUERIES queries (a multiple of 8).
//
// A code is unpacked to bytes 0 and 1 in registers, the weights are int8, rounded up. The sums begin at minus the least
// sum of a hit, so a sum is not negative where a row may be a hit; such candidates are scored by `rescore`.

#define GROUPS (QUERIES / 8)  // of 8 queries
#define STEPS WORDS           // of 32 bits
#define BATCH_THREADS 128

#ifdef WARPGROUPS
#define SUMS (QUERIES / 2)    // of a thread, for 2 rows

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// The address of weights in shared memory, as wgmma takes it: blocks of 8 queries x 16 bytes, no swizzle.
__device__ __forceinline__ u64 describe(const void* weights) {
  u64 address = __cvta_generic_to_shared(weights);
  return (address & 0x3ffff) >> 4 | (u64)(GROUPS * 128 >> 4) << 16 | (u64)(128 >> 4) << 32;
}
#else
#define SUMS (GROUPS * 4)
#endif

// Store the live rows of the sums that are not negative: bit 4 j + 2 h + e is query 8 (group + j) + 2 t + e, row + 32 h.
__device__ __noinline__ void store_candidates(const Codes& codes, u32 hits, int group, long long row, int t,
                                              Results* results, Entry* found, u64 capacity) {
  while (hits) {
    int i = __ffs(hits) - 1;
    hits &= hits - 1;
    long long place = row + (i & 2) * 16;
    if (is_live(codes, place)) {
      u64 at = atomicAdd(&results->found, 1ull);
      if (at < capacity) found[at].key = (u64)((group + i / 4) * 8 + t * 2 + (i & 1)) << 48 | place;
    }
  }
}

extern "C" __global__ void __launch_bounds__(BATCH_THREADS, BLOCKS) scan_batch(
    CODES, int phase, const Plan* plans, const signed char* quantised, Results* results, Entry* found, u64 capacity) {
  USE_CODES;
  extern __shared__ __align__(128) signed char weights[];  // STEPS x 2 x GROUPS blocks of 8 queries x 16 bytes
  __shared__ __align__(16) int starts[4][GROUPS + 2][2];   // of the queries 8 j + 2 t and 8 j + 2 t + 1: [t][j], padded
  for (int i = threadIdx.x; i < STEPS * QUERIES * 2; i += BATCH_THREADS) {
    int step = i / (QUERIES * 2), q = i / 2 % QUERIES, half = i % 2;
    ((uint4*)weights)[(step * 2 + half) * QUERIES + q] = ((const uint4*)quantised)[i];
  }
  for (int q = threadIdx.x; q < QUERIES; q += BATCH_THREADS) starts[q % 8 / 2][q / 8][q % 2] = -plans[q].least;
#ifdef WARPGROUPS
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (long long piece = blockIdx.x;; piece += gridDim.x) {
    long long first = piece_of(phase, piece) * PIECE;
    if (first >= codes.tiles) break;
    const uint4* base = (const uint4*)tile_at(codes, first) + warp * 16 + g;  // 64 codes of a tile for each warp
    int tiles = (int)min((long long)PIECE, codes.tiles - first);
    uint4 upper[WORDS], lower[WORDS];
    #pragma unroll
    for (int w = 0; w < WORDS; ++w) { upper[w] = __ldcs(base + w * 64); lower[w] = __ldcs(base + w * 64 + 8); }
    for (int tile = 0; tile < tiles; ++tile) {
      uint4 now[2][WORDS];
      #pragma unroll
      for (int w = 0; w < WORDS; ++w) { now[0][w] = upper[w]; now[1][w] = lower[w]; }
      const uint4* next = base + (tile + 1 < tiles ? tile + 1 : tile) * (WORDS * 64);
      #pragma unroll
      for (int w = 0; w < WORDS; ++w) { upper[w] = __ldcs(next + w * 64); lower[w] = __ldcs(next + w * 64 + 8); }
      #pragma unroll
      for (int c = 0; c < 4; ++c) {  // codes 4 g + c and 32 + 4 g + c of the warp
        u32 bits[WORDS][4];
        #pragma unroll
        for (int w = 0; w < WORDS; ++w)
          #pragma unroll
          for (int half = 0; half < 2; ++half) {
            uint4 four = now[half][w];
            u32 word = (c == 0 ? four.x : c == 1 ? four.y : c == 2 ? four.z : four.w) >> 2 * t;
            bits[w][half] = word & 0x01010101u;
            bits[w][half + 2] = word >> 1 & 0x01010101u;
          }
        int sums[SUMS];
        #pragma unroll
        for (int j = 0; j < GROUPS; j += 2) {
          int4 start = *(const int4*)starts[t][j];
          sums[4 * j] = sums[4 * j + 2] = start.x;
          sums[4 * j + 1] = sums[4 * j + 3] = start.y;
          sums[4 * j + 4] = sums[4 * j + 6] = start.z;
          sums[4 * j + 5] = sums[4 * j + 7] = start.w;
        }
#ifdef WARPGROUPS
        begin_products();
        #pragma unroll
        for (int w = 0; w < WORDS; ++w) add_products(sums, bits[w], describe(weights + w * QUERIES * 32));
        end_products();
#else
        #pragma unroll
        for (int w = 0; w < WORDS; ++w)
          #pragma unroll
          for (int j = 0; j < GROUPS; ++j) {
            u32 low = *(const u32*)(weights + (w * 2 * QUERIES + j * 8 + g) * 16 + t * 4);
            u32 high = *(const u32*)(weights + ((w * 2 + 1) * QUERIES + j * 8 + g) * 16 + t * 4);
            asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                         : "+r"(sums[4 * j]), "+r"(sums[4 * j + 1]), "+r"(sums[4 * j + 2]), "+r"(sums[4 * j + 3])
                         : "r"(bits[w][0]), "r"(bits[w][1]), "r"(bits[w][2]), "r"(bits[w][3]), "r"(low), "r"(high));
          }
#endif
        int all = -1;
        #pragma unroll
        for (int i = 0; i < SUMS; ++i) all &= sums[i];
        if (__builtin_expect(all >= 0, 0)) {
          u32 hits[(SUMS + 31) / 32] = {};
          #pragma unroll
          for (int i = 0; i < SUMS; ++i) hits[i / 32] |= (u32)(sums[i] >= 0) << i % 32;
          #pragma unroll
          for (int part = 0; part < (SUMS + 31) / 32; ++part)
            store_candidates(codes, hits[part], part * 8, (first + tile) * TILE + warp * 64 + 4 * g + c, t, results, found, capacity);
        }
      }
    }
  }
}
