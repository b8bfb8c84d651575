// Exact search on a GPU: the layout of codes, the plan of a query, and what all kernels share.
// Compiled at run time for one code length: WORDS is the number of 32-bit words of a code. `tests/search/gpu/numpy_card.py`
// has the same steps in NumPy, one method for each kernel.
//
// Codes lie in tiles of 256: word j of all 256 codes, then word j + 1. Tiles lie in chunks of 2^shift tiles.
// A score is the double sum of weights on the grid of exact_scores.py, in any order, rounded once to float. Everything
// that decides whether a row is a hit compares these floats; bounds are only used to skip rows that cannot be hits.

typedef unsigned int u32;
typedef unsigned long long u64;

#define TILE 256
#define BINS 4096          // of a histogram of scores
#define NIBBLES (WORDS * 8)
#define PIECE 32           // tiles that a block takes at a time
#define SPLIT 16           // few pieces are scanned first, then so many times as many, then all, to tighten the threshold
#define MOST_PLANES 6
#define INFINITE __int_as_float(0x7f800000)
#define NEVER (1 << 30)

struct Codes {             // what the index holds at one moment
  const u64* chunks;       // addresses
  const u32* live;         // one bit a row: live, and allowed
  long long end;           // rows from here on do not exist yet
  int tiles;
  int shift;
};
#define CODES const u64* chunks, const u32* live, long long end, int tiles, int shift
#define USE_CODES const Codes codes = {chunks, live, end, tiles, shift}

struct Plan {              // of one query
  double best;             // highest possible score
  double inverse;          // bins per score
  double scale;            // of the int8 weights of a batch
  double sum;              // of the weights
  float tau;               // no hit has a lower score
  int limit;               // a row may be a hit if its quantised loss is at most this
  int planes;              // 3 or 4; 6 for long codes
  int least;               // a row may be a hit if its int8 sum is at least this
  u32 sign[16];            // the best code
  u32 plane[MOST_PLANES][16];
};

struct Entry { u64 key; float score; u32 unused; };  // key: query << 48 | row
struct Results { u64 found, kept, scanned, unused; };  // candidates, results; candidates of earlier phases

__device__ __forceinline__ const u32* tile_at(const Codes& codes, long long tile) {
  return (const u32*)codes.chunks[tile >> codes.shift] + (tile & ((1ll << codes.shift) - 1)) * (WORDS * TILE);
}

__device__ __forceinline__ bool is_live(const Codes& codes, long long row) {
  return row < codes.end && (codes.live[row >> 5] >> (row & 31) & 1);
}

// The score of a row, by a table of the sums of each 4 weights.
__device__ __forceinline__ float score_row(const Codes& codes, long long row, const double* table) {
  const u32* words = tile_at(codes, row / TILE) + row % TILE;
  double score = 0;
  for (int w = 0; w < WORDS; ++w) {
    u32 word = words[w * TILE];
    #pragma unroll
    for (int n = 0; n < 8; ++n) score += table[(w * 8 + n) * 16 + (word >> 4 * n & 15)];
  }
  return (float)score;
}

__device__ __forceinline__ int bin_of(const Plan& plan, float score) {
  int bin = (int)floor(((double)score + plan.best) * plan.inverse);
  return bin < 0 ? 0 : bin >= BINS ? BINS - 1 : bin;
}

// The lowest double score of a row whose float score is at least tau.
__device__ __forceinline__ double lowest_score(float tau) { return (double)tau - fabs((double)tau) * 1.2e-7 - 2e-45; }

// Which piece is the i-th of a phase: 0 has all pieces, 1 one in SPLIT * SPLIT, 2 the rest of one in SPLIT, 3 the others.
__device__ __forceinline__ long long piece_of(int phase, long long i) {
  long long skipping = i / (SPLIT - 1) * SPLIT + i % (SPLIT - 1) + 1;
  return phase == 0 ? i : phase == 1 ? i * SPLIT * SPLIT : phase == 2 ? skipping * SPLIT : skipping;
}
