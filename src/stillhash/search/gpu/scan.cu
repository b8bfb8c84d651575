// The kernels of one query, and those that one query and many share: appended to layout.cu.

extern "C" {

// One block a query: tables of scores, the quantised weights of a batch, the threshold to begin with.
__global__ void prepare(const double* weights, const float* floors, int queries, int padded, Plan* plans, double* tables,
                        signed char* quantised, u32* histograms, Results* results) {
  int q = blockIdx.x;
  __shared__ double w[WORDS * 32];
  __shared__ double most;
  for (int i = threadIdx.x; i < WORDS * 32; i += blockDim.x) w[i] = q < queries ? weights[q * WORDS * 32 + i] : 0;
  for (int i = threadIdx.x; i < BINS; i += blockDim.x) histograms[(long long)q * BINS + i] = 0;
  if (q == 0 && threadIdx.x == 0) *results = Results{0, 0, 0, 0};
  __syncthreads();
  Plan& plan = plans[q];
  if (threadIdx.x == 0) {
    double best = 0, sum = 0, large = 0;
    for (int i = 0; i < WORDS * 32; ++i) { best += fabs(w[i]); sum += w[i]; large = fmax(large, fabs(w[i])); }
    plan.best = best;
    plan.sum = sum;
    plan.inverse = best > 0 ? BINS / (2 * best) : 0;
    plan.tau = q < queries ? floors[q] : INFINITE;
    plan.scale = most = large > 0 ? 63 / large : 0;
    if (!(plan.scale < 1e300)) plan.scale = most = 0;  // weights too small to divide by: every row may be a hit
  }
  __syncthreads();
  for (int i = threadIdx.x; i < NIBBLES * 16; i += blockDim.x) {
    double sum = 0;
    for (int b = 0; b < 4; ++b) sum += (i >> b & 1) ? w[i / 16 * 4 + b] : -w[i / 16 * 4 + b];
    tables[(long long)q * NIBBLES * 16 + i] = sum;
  }
  // Bit 2 t + h + 8 e of a word is element 16 h + 4 t + e of a step of the tensor cores: then a mask unpacks the bits.
  for (int i = threadIdx.x; i < WORDS * 32; i += blockDim.x) {
    int element = i % 32, bit = i / 32 * 32 + 2 * (element % 16 / 4) + element / 16 + 8 * (element % 4);
    quantised[((long long)(i / 32) * padded + q) * 32 + element] = (signed char)ceil(2 * w[bit] * most);  // rounded up
  }
}

// Score every so many-th row, and count the scores.
__global__ void sample(CODES, const Plan* plans, const double* tables, u32* histograms, long long rows,
                       long long samples, long long stride) {
  USE_CODES;
  __shared__ u32 counts[BINS];
  __shared__ double table[NIBBLES * 16];
  int q = blockIdx.y;
  for (int i = threadIdx.x; i < BINS; i += blockDim.x) counts[i] = 0;
  for (int i = threadIdx.x; i < NIBBLES * 16; i += blockDim.x) table[i] = tables[(long long)q * NIBBLES * 16 + i];
  __syncthreads();
  const Plan& plan = plans[q];
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < samples; i += (long long)gridDim.x * blockDim.x) {
    u32 mixed = (u32)i * 2654435761u;
    long long row = i * stride + (long long)(((u64)mixed * (u64)stride) >> 32);  // not in step with the order of rows
    if (row < rows && is_live(codes, row)) atomicAdd(&counts[bin_of(plan, score_row(codes, row, table))], 1u);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < BINS; i += blockDim.x)
    if (counts[i]) atomicAdd(&histograms[(long long)q * BINS + i], counts[i]);
}

// One block of 256 threads a query: raise the threshold to the k-th best score counted so far, and quantise for it.
__global__ void tighten(Plan* plans, const double* weights, u32* histograms, Results* results, int queries, u64 k,
                        u64 capacity, int planes, int clear) {
  __shared__ u64 sums[256];
  __shared__ double loss[WORDS * 32];
  __shared__ bool positive[WORDS * 32];
  __shared__ float lost[8], scales[8];
  __shared__ int bin;
  int q = blockIdx.x, at = threadIdx.x;
  u32* histogram = histograms + (long long)q * BINS;
  Plan& plan = plans[q];
  u64 own = 0;
  for (int i = 0; i < BINS / 1024; ++i) {
    uint4 four = ((const uint4*)histogram)[at * (BINS / 1024) + i];
    own += (u64)four.x + four.y + four.z + four.w;
  }
  sums[at] = own;
  if (at == 0) bin = -1;
  for (int i = at; i < WORDS * 32; i += 256) {
    double weight = q < queries ? weights[q * WORDS * 32 + i] : 0;
    loss[i] = 2 * fabs(weight);
    positive[i] = weight > 0;
  }
  const double unit = plan.scale;  // losses in this unit are at most 126, so that floats hold them
  __syncthreads();
  for (int step = 1; step < 256; step *= 2) {  // sums[at] becomes the count of all bins from this thread's on
    u64 more = at + step < 256 ? sums[at + step] : 0;
    __syncthreads();
    sums[at] += more;
    __syncthreads();
  }
  if (sums[at] >= k && sums[at] - own < k) {
    u64 count = sums[at] - own;
    int i = BINS / 256;
    while (count < k) count += histogram[at * (BINS / 256) + --i];
    bin = at * (BINS / 256) + i;
  }
  __syncthreads();
  if (clear)
    for (int i = at; i < BINS; i += 256) histogram[i] = 0;
  if (at == 0) {
    if (bin > 0 && plan.inverse > 0) {
      double edge = bin / plan.inverse - plan.best;
      float tau = (float)(edge - 1e-9 * plan.best);
      if ((double)tau > edge - 1e-9 * plan.best) tau = nextafterf(tau, -INFINITE);
      plan.tau = fmaxf(plan.tau, tau);
    }
    double low = (lowest_score(plan.tau) + plan.sum) * plan.scale - 1e-6;
    plan.least = plan.tau == INFINITE || low > 1e9 ? NEVER : plan.scale == 0 || !(low > -1e9) ? -NEVER : (int)floor(low);
    if (q == 0) results->scanned = results->found < capacity ? results->found : capacity;
  }
  __syncthreads();
  // Losses are quantised to few bits, rounded down. Which scale loses least, on the rows at the threshold?
  // There, bit i is lost by a share of 1 / (1 + e^(x loss)) of the rows.
  const int lane = at % 32, warp = at / 32, top = (1 << planes) - 1;
  const double allowance = plan.best - lowest_score(plan.tau);
  float most = 0, rate = 0;
  for (int i = lane; i < WORDS * 32; i += 32) most = fmaxf(most, (float)(loss[i] * unit));
  for (int s = 16; s; s /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, s));
  if (most > 0) {
    float low = 0, high = 80 / most, goal = (float)(allowance * unit);
    for (int turn = 0; turn < 16; ++turn) {
      float middle = (low + high) / 2, sum = 0;
      for (int i = lane; i < WORDS * 32; i += 32) {
        float each = (float)(loss[i] * unit);
        sum += each / (1 + __expf(middle * each));
      }
      for (int s = 16; s; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
      if (sum > goal) low = middle; else high = middle;
    }
    rate = low;
  }
  float tried = most > 0 ? top * (1 + warp * 0.25f) / most : 0, missing = 0;  // each warp tries one scale
  for (int i = lane; i < WORDS * 32; i += 32) {
    float each = (float)(loss[i] * unit);
    missing += (each - (tried > 0 ? fminf(floorf(each * tried), (float)top) / tried : 0)) / (1 + __expf(rate * each));
  }
  for (int s = 16; s; s /= 2) missing += __shfl_xor_sync(~0u, missing, s);
  if (lane == 0) { lost[warp] = missing; scales[warp] = tried; }
  __syncthreads();
  int chosen = 0;
  for (int f = 1; f < 8; ++f) if (lost[f] < lost[chosen]) chosen = f;
  double scale = (double)scales[chosen] * unit;
  if (!(scale < 1e300)) scale = 0;
  if (at == 0) {
    double limit = allowance * scale * (1 + 1e-9);
    plan.planes = planes;
    plan.limit = scale == 0 || !(limit < 1e9) ? NEVER : (int)floor(limit);
  }
  for (int i = at; i < WORDS * 32; i += 256) {
    int level = (int)fmin(floor(loss[i] * scale), (double)top);
    u32 sign = __ballot_sync(~0u, positive[i]);
    if (lane == 0) plan.sign[i / 32] = sign;
    for (int j = 0; j < MOST_PLANES; ++j) {
      u32 plane = __ballot_sync(~0u, level >> j & 1);
      if (lane == 0) plan.plane[j][i / 32] = plane;
    }
  }
}

}  // extern "C"

// The sum of level << popcount, by carry-save adders: few popcounts, which are slow, and many logic operations.
template <int B, int LEVEL, int CARRIES> struct WeightedCount {
  static __device__ __forceinline__ int of(const u32 (&code)[WORDS], const u32 (&sign)[WORDS], const u32 (&plane)[B][WORDS], const u32* carries) {
    constexpr int OWN = LEVEL < B ? WORDS : 0, IN = OWN + CARRIES;
    if constexpr (IN == 0) {
      return 0;
    } else {
      constexpr int FULL = (IN - 1) / 2;
      constexpr int HALF = IN % 2 == 0 && LEVEL < B ? 1 : 0;
      u32 in[IN], next[FULL + HALF + 1];
      #pragma unroll
      for (int i = 0; i < OWN; ++i) in[i] = (code[i] ^ sign[i]) & plane[LEVEL < B ? LEVEL : 0][i];
      #pragma unroll
      for (int i = 0; i < CARRIES; ++i) in[OWN + i] = carries[i];
      u32 sum = in[0];
      #pragma unroll
      for (int i = 0; i < FULL; ++i) {
        u32 a = in[2 * i + 1], b = in[2 * i + 2];
        next[i] = (sum & a) | (sum & b) | (a & b);
        sum = sum ^ a ^ b;
      }
      int count = 0;
      if constexpr (HALF) {
        next[FULL] = sum & in[IN - 1];
        sum ^= in[IN - 1];
      } else if constexpr (IN % 2 == 0) {
        count = __popc(in[IN - 1]) << LEVEL;
      }
      return count + (__popc(sum) << LEVEL) + WeightedCount<B, LEVEL + 1, FULL + HALF>::of(code, sign, plane, next);
    }
  }
};

// Score a row that may be a hit; if it is none below the threshold, count and store it.
__device__ __noinline__ void consider(const Codes& codes, long long row, const double* table, const Plan& plan, float tau,
                                      u32* histogram, Results* results, Entry* found, u64 capacity) {
  if (!is_live(codes, row)) return;
  float score = score_row(codes, row, table);
  if (!(score >= tau)) return;
  atomicAdd(&histogram[bin_of(plan, score)], 1u);
  u64 at = atomicAdd(&results->found, 1ull);
  if (at < capacity) found[at] = Entry{(u64)row, score, 0};
}

#define AT_ONCE (WORDS <= 2 ? 4 : 1)         // groups of rows that a thread loads before it uses them
#define AHEAD (WORDS <= 2 || WORDS > 4 ? 0 : 1)  // groups that it loads before it uses the last ones: 0 or AT_ONCE

__device__ __forceinline__ void load_codes(uint4 (&words)[WORDS], const uint4* base, int tile) {
  #pragma unroll
  for (int w = 0; w < WORDS; ++w) words[w] = __ldcs(base + tile * (WORDS * 64) + w * 64);
}

template <int B> __device__ __forceinline__ void scan_pieces(const Codes& codes, int phase, const Plan& plan, const double* table,
                                                             u32* histogram, Results* results, Entry* found, u64 capacity) {
  u32 sign[WORDS], plane[B][WORDS];
  #pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    sign[w] = plan.sign[w];
    #pragma unroll
    for (int j = 0; j < B; ++j) plane[j][w] = plan.plane[j][w];
  }
  const int limit = plan.limit;
  const float tau = plan.tau;
  const int own = threadIdx.x >> 6, group = threadIdx.x & 63;  // 64 threads a tile, 4 codes each
  for (long long i = blockIdx.x;; i += gridDim.x) {
    long long first = piece_of(phase, i) * PIECE;
    if (first >= codes.tiles) break;
    const uint4* base = (const uint4*)tile_at(codes, first) + group;
    int last = (int)min((long long)PIECE, codes.tiles - first) - 1;
    uint4 words[AT_ONCE][WORDS], next[AHEAD ? AHEAD : 1][WORDS];
    #pragma unroll
    for (int u = 0; u < AHEAD; ++u) load_codes(next[u], base, min(u * 4 + own, last));
    for (int step = 0; step < PIECE / 4; step += AT_ONCE) {
      #pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) {  // a tile past the end is read again and has no rows
        if constexpr (AHEAD == 0) {
          load_codes(words[u], base, min((step + u) * 4 + own, last));
        } else {
          #pragma unroll
          for (int w = 0; w < WORDS; ++w) words[u][w] = next[u][w];
          load_codes(next[u], base, min((step + AT_ONCE + u) * 4 + own, last));
        }
      }
      u32 hits = 0;
      #pragma unroll
      for (int u = 0; u < AT_ONCE; ++u)
        #pragma unroll
        for (int c = 0; c < 4; ++c) {
          u32 code[WORDS];
          #pragma unroll
          for (int w = 0; w < WORDS; ++w) code[w] = c == 0 ? words[u][w].x : c == 1 ? words[u][w].y : c == 2 ? words[u][w].z : words[u][w].w;
          if (WeightedCount<B, 0, 0>::of(code, sign, plane, nullptr) <= limit) hits |= 1u << (u * 4 + c);
        }
      while (hits) {
        int place = __ffs(hits) - 1;
        hits &= hits - 1;
        int tile = (step + place / 4) * 4 + own;
        if (tile <= last) consider(codes, (first + tile) * TILE + group * 4 + place % 4, table, plan, tau, histogram, results, found, capacity);
      }
    }
  }
}

// The same for long codes: a thread has one row of a tile, so that codes and planes fit its registers.
template <int B> __device__ __forceinline__ void scan_long_codes(const Codes& codes, int phase, const Plan& plan, const double* table,
                                                                 u32* histogram, Results* results, Entry* found, u64 capacity) {
  u32 sign[WORDS], plane[B][WORDS];
  #pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    sign[w] = plan.sign[w];
    #pragma unroll
    for (int j = 0; j < B; ++j) plane[j][w] = plan.plane[j][w];
  }
  const int limit = plan.limit;
  const float tau = plan.tau;
  for (long long i = blockIdx.x;; i += gridDim.x) {
    long long first = piece_of(phase, i) * PIECE;
    if (first >= codes.tiles) break;
    const u32* base = tile_at(codes, first) + threadIdx.x;
    int count = (int)min((long long)PIECE, codes.tiles - first);
    u32 next[WORDS];
    #pragma unroll
    for (int w = 0; w < WORDS; ++w) next[w] = __ldcs(base + w * TILE);
    for (int tile = 0; tile < count; ++tile) {
      u32 code[WORDS];
      const u32* after = base + min(tile + 1, count - 1) * (WORDS * TILE);
      #pragma unroll
      for (int w = 0; w < WORDS; ++w) { code[w] = next[w]; next[w] = __ldcs(after + w * TILE); }
      if (WeightedCount<B, 0, 0>::of(code, sign, plane, nullptr) <= limit)
        consider(codes, (first + tile) * TILE + threadIdx.x, table, plan, tau, histogram, results, found, capacity);
    }
  }
}

extern "C" {

// One query over all codes of a phase: a bound of few bits a weight, then the score of what passes.
__global__ void __launch_bounds__(256) scan_one(CODES, int phase, const Plan* plan, const double* tables,
                                                u32* histogram, Results* results, Entry* found, u64 capacity) {
  USE_CODES;
  __shared__ double table[NIBBLES * 16];
  for (int i = threadIdx.x; i < NIBBLES * 16; i += 256) table[i] = tables[i];
  __syncthreads();
  if constexpr (WORDS > 4) scan_long_codes<MOST_PLANES>(codes, phase, *plan, table, histogram, results, found, capacity);
  else if (plan->planes == 3) scan_pieces<3>(codes, phase, *plan, table, histogram, results, found, capacity);
  else scan_pieces<4>(codes, phase, *plan, table, histogram, results, found, capacity);
}

// One query over the live rows alone, where these are few.
__global__ void __launch_bounds__(256) scan_few(CODES, int phase, const Plan* plan, const double* tables,
                                                u32* histogram, Results* results, Entry* found, u64 capacity) {
  USE_CODES;
  __shared__ double table[NIBBLES * 16];
  for (int i = threadIdx.x; i < NIBBLES * 16; i += 256) table[i] = tables[i];
  __syncthreads();
  float tau = plan->tau;
  for (long long i = blockIdx.x;; i += gridDim.x) {
    long long first = piece_of(phase, i) * PIECE;
    if (first >= codes.tiles) break;
    long long word = first * (TILE / 32) + threadIdx.x;
    u32 rows = word < (long long)codes.tiles * (TILE / 32) ? codes.live[word] : 0;
    while (rows) {
      long long row = word * 32 + __ffs(rows) - 1;
      rows &= rows - 1;
      consider(codes, row, table, *plan, tau, histogram, results, found, capacity);
    }
  }
}

// Score the candidates of a batch that came since the last call.
__global__ void rescore(CODES, const Plan* plans, const double* tables, u32* histograms, const Results* results,
                        Entry* found, u64 capacity) {
  USE_CODES;
  u64 last = min(results->found, capacity);
  for (u64 i = results->scanned + (u64)blockIdx.x * blockDim.x + threadIdx.x; i < last; i += (u64)gridDim.x * blockDim.x) {
    u64 key = found[i].key;
    int q = (int)(key >> 48);
    float score = score_row(codes, key & 0xffffffffffffull, tables + (long long)q * NIBBLES * 16);
    bool hit = score >= plans[q].tau;
    found[i].score = hit ? score : -INFINITE;
    if (hit) atomicAdd(&histograms[(long long)q * BINS + bin_of(plans[q], score)], 1u);
  }
}

// Keep the candidates that are not below the last threshold.
__global__ void keep(const Plan* plans, Results* results, const Entry* found, Entry* kept, u64 capacity) {
  u64 end = min(results->found, capacity);
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += (u64)gridDim.x * blockDim.x) {
    Entry entry = found[i];
    if (entry.score >= plans[entry.key >> 48].tau && entry.score > -INFINITE) kept[atomicAdd(&results->kept, 1ull)] = entry;
  }
}

// Tiles of byte planes, as the index on the host has them, to tiles of words.
__global__ void write_tiles(const unsigned char* bytes, int planes, int tiles, u32* target) {
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < (long long)tiles * WORDS * 64; i += (long long)gridDim.x * blockDim.x) {
    long long tile = i / (WORDS * 64);
    int word = i / 64 % WORDS, group = i % 64;
    u32 in[4];
    #pragma unroll
    for (int b = 0; b < 4; ++b) in[b] = word * 4 + b < planes ? ((const u32*)bytes)[(tile * planes + word * 4 + b) * 64 + group] : 0;
    u32 a = __byte_perm(in[0], in[1], 0x5140), b = __byte_perm(in[2], in[3], 0x5140);  // codes 0 and 1
    u32 c = __byte_perm(in[0], in[1], 0x7362), d = __byte_perm(in[2], in[3], 0x7362);  // codes 2 and 3
    ((uint4*)target)[i] = make_uint4(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410), __byte_perm(c, d, 0x7632));
  }
}

// Rows of one block that are live and whose ids are allowed: row `start` + r has the id `first` + r. Counts them.
__global__ void restrict_rows(const u32* live, const u32* allowed, long long ids, long long first, long long start,
                              long long words, u32* out, u64* count) {
  u64 rows = 0;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += (long long)gridDim.x * blockDim.x) {
    long long bit = first + i * 32, word = bit >> 5, size = (ids + 31) / 32;
    u32 low = word < size ? allowed[word] : 0, high = word + 1 < size ? allowed[word + 1] : 0;
    u32 value = __funnelshift_r(low, high, (u32)(bit & 31)) & live[start / 32 + i];
    out[start / 32 + i] = value;
    rows += __popc(value);
  }
  for (int s = 16; s; s /= 2) rows += __shfl_xor_sync(~0u, rows, s);
  if (threadIdx.x % 32 == 0 && rows) atomicAdd(count, rows);
}

// Touch every word once: no scan can be faster.
__global__ void read_codes(CODES, u32* out) {
  USE_CODES;
  u32 sum = 0;
  for (long long i = blockIdx.x;; i += gridDim.x) {
    long long first = i * PIECE;
    if (first >= codes.tiles) break;
    const uint4* base = (const uint4*)tile_at(codes, first);
    int size = (int)min((long long)PIECE, codes.tiles - first) * WORDS * 64;
    for (int at = threadIdx.x; at < size; at += 4 * blockDim.x) {
      #pragma unroll
      for (int u = 0; u < 4; ++u) {
        uint4 v = __ldcs(base + min(at + u * (int)blockDim.x, size - 1));
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
      }
    }
  }
  if (sum == 0x12345678u) *out = sum;
}

}  // extern "C"
