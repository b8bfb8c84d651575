// Many queries over all codes, on the int8 tensor cores: appended to layout.cu, for QUERIES queries (a multiple of 8).
//
// A code is unpacked to bytes 0 and 1 in registers, the weights are int8, rounded up. A row may be a hit if
// its sum is not below the least sum of a hit; such candidates are scored by `rescore`.

#define GROUPS (QUERIES / 8)  // of 8 queries
#define STEPS WORDS           // of 32 bits
#define BATCH_THREADS 128
#ifndef AHEAD
#define AHEAD (WORDS <= 2 && QUERIES < 128 ? 4 : 2)  // steps whose codes are loaded before they are used: 2 or 4
#endif

#ifdef WARPGROUPS
#define SUMS (QUERIES / 2)    // of a thread, for 2 rows

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products(int (&sums)[SUMS]) {
  asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
  #pragma unroll
  for (int i = 0; i < SUMS; ++i) asm volatile("" : "+r"(sums[i]) :: "memory");  // not to be read before
}

// The address of weights in shared memory, as wgmma takes it: blocks of 8 queries x 16 bytes, no swizzle.
__device__ __forceinline__ u64 describe(const void* weights) {
  u64 address = __cvta_generic_to_shared(weights);
  return (address & 0x3ffff) >> 4 | (u64)(GROUPS * 128 >> 4) << 16 | (u64)(128 >> 4) << 32;
}
#else
#define SUMS (GROUPS * 4)
#endif

__device__ __forceinline__ void load_step(uint2 (&words)[WORDS], const uint2* tile, int step) {
  #pragma unroll
  for (int w = 0; w < WORDS; ++w) words[w] = __ldcs(tile + w * (TILE / 2) + step * 32);
}

// Store the live rows of the sums that are not negative: bit 4 j + 2 h + e is query 8 (group + j) + 2 t + e, row + h.
__device__ __noinline__ void store_candidates(const Codes& codes, u32 hits, int group, long long row, int t,
                                              Results* results, Entry* found, u64 capacity) {
  while (hits) {
    int i = __ffs(hits) - 1;
    hits &= hits - 1;
    long long place = row + (i >> 1 & 1);
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
  __shared__ int starts[4][GROUPS][2];                        // of the queries 8 j + 2 t and 8 j + 2 t + 1: [t][j]
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
  int start[GROUPS][2];  // in registers: shared memory is busy with the weights
  #pragma unroll
  for (int j = 0; j < GROUPS; ++j) { start[j][0] = starts[t][j][0]; start[j][1] = starts[t][j][1]; }
  for (long long piece = blockIdx.x;; piece += gridDim.x) {
    long long first = piece_of(phase, piece) * PIECE;
    if (first >= codes.tiles) break;
    // A step is 64 codes of a tile, 16 for each warp; a thread has the codes 2 g and 2 g + 1 of these.
    const uint2* tile = (const uint2*)(tile_at(codes, first) + warp * 16) + g;
    int count = (int)min((long long)PIECE, codes.tiles - first);
    uint2 ahead[AHEAD][WORDS];
    #pragma unroll
    for (int u = 0; u < AHEAD; ++u) load_step(ahead[u], tile, u);
    for (int place = 0; place < count; ++place) {
      const uint2* next = tile + (place + 1 < count ? WORDS * (TILE / 2) : 0);
      #pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int u = step % AHEAD;
        u32 bits[WORDS][4];
        #pragma unroll
        for (int w = 0; w < WORDS; ++w) {
          u32 even = ahead[u][w].x >> 2 * t, odd = ahead[u][w].y >> 2 * t;
          bits[w][0] = even & 0x01010101u;
          bits[w][1] = odd & 0x01010101u;
          bits[w][2] = even >> 1 & 0x01010101u;
          bits[w][3] = odd >> 1 & 0x01010101u;
        }
        load_step(ahead[u], step + AHEAD < 4 ? tile : next, (step + AHEAD) % 4);
        int sums[SUMS];
#ifdef WARPGROUPS
        begin_products();
        set_products(sums, bits[0], describe(weights));
        #pragma unroll
        for (int w = 1; w < WORDS; ++w) add_products(sums, bits[w], describe(weights + w * QUERIES * 32));
        end_products(sums);
#else
        #pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = 0;
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
        int most[4] = {-1, -1, -1, -1};
        #pragma unroll
        for (int i = 0; i < SUMS; ++i) most[i % 4] = max(sums[i] + start[i / 4][i & 1], most[i % 4]);
        if (__builtin_expect(max(max(most[0], most[1]), max(most[2], most[3])) >= 0, 0)) {
          long long row = (first + place) * TILE + step * 64 + warp * 16 + 2 * g;
          #pragma unroll
          for (int part = 0; part < SUMS; part += 32) {
            u32 negative = ~0u;
            #pragma unroll
            for (int i = min(part + 32, SUMS) - 1; i >= part; --i) negative = __funnelshift_l(sums[i] + start[i / 4][i & 1], negative, 1);
            store_candidates(codes, ~negative, part / 4, row, t, results, found, capacity);
          }
        }
      }
      tile = next;
    }
  }
}
