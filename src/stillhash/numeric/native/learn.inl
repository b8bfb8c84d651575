// The Passive-Aggressive recursion, resolved exactly in blocks of kBlock rows (the Gram trick).
//
// The literal loop, for each row x with target g, on every row u of U:
//     tau = min(C, max(0, 1 - g u.x) / |x|^2);   u += tau g x
// Inside a block u.x_j differs from its value at the block's start only by sum_{i<j} a_i (x_i.x_j), where
// a_i = tau_i g_i. So with P = X U^T and K = X X^T of the block, the a_j follow one after the other from
// P_j + sum_{i<j} K_ji a_i, and one product U += A^T X ends the block. Same numbers, up to rounding.
//
// U is held transposed (D, l): a row of target bits is contiguous, so all three products are one register
// tile, c[r][:] += sum_k a(k, r) b[k][:], and the columns (target bits) are independent of each other. The
// block of X is transposed once into XT (D, kBlock), which is `a` in all three.
//
// Included by one translation unit per instruction set, which defines LANE_BYTES, TILE_ROWS, TILE_VECTORS.
#include <utility>

#include "fused.inl"

namespace stillhash {
namespace {

template <class T, int Bytes>
struct Vector {
  typedef T type __attribute__((vector_size(Bytes), aligned(sizeof(T)), may_alias));
  static constexpr int lanes = Bytes / static_cast<int>(sizeof(T));
};
template <class T>
struct Vector<T, 0> {
  typedef T type;
  static constexpr int lanes = 1;
};

constexpr int64_t kDepth = 128;  // so that a panel's slice stays in the first-level cache
constexpr int kAhead = 8;   // rows of b that are fetched ahead of use
constexpr int kPanel = 64;  // row stride of the P and A scratch; at least the widest register tile

// c[r][0:N*lanes] += sum_k a[k*ka + r*ra] * b[k*kb + 0:N*lanes]; number i of `Tile` is vector i % N of row i / N.
//
// Every sum has a constant index of its own, so that it stays in a register: GCC 12 stores the sums of loops over rows
// and vectors at every step.
template <class T, int Bytes, int N, int... Tile>
inline void tile(std::integer_sequence<int, Tile...>, int64_t K, const T* a, int64_t ka, int64_t ra, const T* b,
                 int64_t kb, T* c, int64_t rc) {
  using V = typename Vector<T, Bytes>::type;
  constexpr int L = Vector<T, Bytes>::lanes;
  V sums[] = {*reinterpret_cast<const V*>(c + Tile / N * rc + Tile % N * L)...};
  for (int64_t k = 0; k < K; ++k) {
    __builtin_prefetch(b + (k + kAhead) * kb);
    const T *row = a + k * ka, *columns = b + k * kb;
    ((sums[Tile] = fused(broadcast<V>(row[Tile / N * ra]), *reinterpret_cast<const V*>(columns + Tile % N * L),
                         sums[Tile])),
     ...);
  }
  ((*reinterpret_cast<V*>(c + Tile / N * rc + Tile % N * L) = sums[Tile]), ...);
}

template <class T, int Bytes, int R, int N>
inline void tile(int64_t K, const T* a, int64_t ka, int64_t ra, const T* b, int64_t kb, T* c, int64_t rc) {
  tile<T, Bytes, N>(std::make_integer_sequence<int, R * N>(), K, a, ka, ra, b, kb, c, rc);
}

template <class T, int Bytes, int N>
inline void rows(int64_t count, int64_t K, const T* a, int64_t ka, int64_t ra, const T* b, int64_t kb, T* c,
                 int64_t rc) {
  int64_t r = 0;
  for (; r + TILE_ROWS <= count; r += TILE_ROWS)
    tile<T, Bytes, TILE_ROWS, N>(K, a + r * ra, ka, ra, b, kb, c + r * rc, rc);
  for (; r < count; ++r) tile<T, Bytes, 1, N>(K, a + r * ra, ka, ra, b, kb, c + r * rc, rc);
}

// Rows [s, s + B) of X, transposed into XT (D, kBlock); the columns past B are zero.
template <class T>
void transpose(const T* X, int64_t s, int64_t B, int64_t D, T* XT) {
  constexpr int64_t kSquare = 16;  // fits the first-level cache
  for (int64_t d0 = 0; d0 < D; d0 += kSquare) {
    const int64_t d1 = d0 + kSquare < D ? d0 + kSquare : D;
    for (int64_t i = 0; i < B; ++i)
      for (int64_t d = d0; d < d1; ++d) XT[d * kBlock + i] = X[(s + i) * D + d];
    for (int64_t d = d0; d < d1; ++d)
      for (int64_t i = B; i < kBlock; ++i) XT[d * kBlock + i] = 0;
  }
}

// P (B, kPanel) = the block's rows times N vectors of columns of W (D, l), from column c0.
template <class T, int Bytes, int N>
void margins(const T* XT, int64_t B, int64_t D, const T* W, int64_t l, int64_t c0, T* P) {
  const int64_t padded = (B + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
  for (int64_t i = 0; i < padded * kPanel; ++i) P[i] = 0;
  for (int64_t d = 0; d < D; d += kDepth) {
    const int64_t depth = D - d < kDepth ? D - d : kDepth;
    rows<T, Bytes, N>(padded, depth, XT + d * kBlock, kBlock, 1, W + d * l + c0, l, P, kPanel);
  }
}

// Calls f(vectors of columns, first column) until all l columns are covered, the widest panels first.
template <class T, template <class, int, int> class F, class... Args>
void over_panels(int64_t l, Args... args) {
  constexpr int L = Vector<T, LANE_BYTES>::lanes;
  constexpr int H = Vector<T, 16>::lanes;
  static_assert(TILE_VECTORS * L <= kPanel && kBlock % TILE_ROWS == 0 && kBlock % (2 * L) == 0, "tile sizes");
  int64_t c = 0;
  for (; c + TILE_VECTORS * L <= l; c += TILE_VECTORS * L) F<T, LANE_BYTES, TILE_VECTORS>::run(c, args...);
  for (; c + 2 * L <= l; c += 2 * L) F<T, LANE_BYTES, 2>::run(c, args...);
  for (; c + L <= l; c += L) F<T, LANE_BYTES, 1>::run(c, args...);
  for (; c + H <= l; c += H) F<T, 16, 1>::run(c, args...);
  for (; c < l; ++c) F<T, 0, 1>::run(c, args...);
}

// N vectors of target bits, from column c0, through one block of B rows.
template <class T, int Bytes, int N>
struct LearnPanel {
  static void run(int64_t c0, T* Ut, const T* XT, const T* K, const T* steps, const int8_t* G, int64_t B, int64_t D,
                  int64_t l, T C, T* P, T* A) {
    using V = typename Vector<T, Bytes>::type;
    constexpr int L = Vector<T, Bytes>::lanes;
    margins<T, Bytes, N>(XT, B, D, Ut, l, c0, P);
    for (int64_t j = 0; j < B; ++j) {
      V p[N];
      for (int n = 0; n < N; ++n) p[n] = *reinterpret_cast<const V*>(P + j * kPanel + n * L);
      for (int64_t i = 0; i < j; ++i)
        for (int n = 0; n < N; ++n)
          p[n] = fused(broadcast<V>(K[j * kBlock + i]), *reinterpret_cast<const V*>(A + i * kPanel + n * L), p[n]);
      T margin[N * L];
      for (int n = 0; n < N; ++n) *reinterpret_cast<V*>(margin + n * L) = p[n];
      const int8_t* g = G + j * l + c0;
      T* a = A + j * kPanel;
      for (int c = 0; c < N * L; ++c) {
        const T sign = static_cast<T>(g[c]);
        const T loss = T(1) - sign * margin[c];
        const T tau = (loss > T(0) ? loss : T(0)) * steps[j];
        a[c] = sign * (tau < C ? tau : C);
      }
    }
    rows<T, Bytes, N>(D, B, XT, 1, kBlock, A, kPanel, Ut + c0, l);
  }
};

template <class T>
void learn(T* Ut, const T* X, const int8_t* G, int64_t n, int64_t D, int64_t l, T C, T* scratch) {
  T* XT = scratch;             // (D, kBlock)
  T* K = XT + D * kBlock;      // (kBlock, kBlock), lower triangle
  T* P = K + kBlock * kBlock;  // (kBlock, kPanel)
  T* A = P + kBlock * kPanel;  // (kBlock, kPanel)
  constexpr int L = Vector<T, LANE_BYTES>::lanes;
  for (int64_t s = 0; s < n; s += kBlock) {
    const int64_t B = n - s < kBlock ? n - s : kBlock;
    transpose(X, s, B, D, XT);
    for (int64_t i = 0; i < kBlock * kBlock; ++i) K[i] = 0;
    for (int64_t r = 0; r < B; r += TILE_ROWS)
      for (int64_t c = 0; c < r + TILE_ROWS; c += 2 * L)
        tile<T, LANE_BYTES, TILE_ROWS, 2>(D, XT + r, kBlock, 1, XT + c, kBlock, K + r * kBlock + c, kBlock);
    T steps[kBlock];  // 1 / |x|^2; a zero row changes nothing
    for (int64_t j = 0; j < B; ++j) {
      const T squared = K[j * kBlock + j];
      steps[j] = squared > T(0) ? T(1) / squared : T(0);
    }
    over_panels<T, LearnPanel>(l, Ut, static_cast<const T*>(XT), static_cast<const T*>(K),
                               static_cast<const T*>(steps), G + s * l, B, D, l, C, P, A);
  }
}

// N vectors of columns of Z = X W for B rows. Each entry is summed in the order of D alone, so a row's result
// does not depend on the rows beside it.
template <class T, int Bytes, int N>
struct ProjectPanel {
  static void run(int64_t c0, const T* X, int64_t B, int64_t D, const T* W, int64_t l, T* Z) {
    for (int64_t d = 0; d < D; d += kDepth)
      rows<T, Bytes, N>(B, D - d < kDepth ? D - d : kDepth, X + d, 1, D, W + d * l + c0, l, Z + c0, l);
  }
};

template <class T>
void project(const T* X, int64_t n, int64_t D, const T* W, int64_t l, T* Z) {
  for (int64_t i = 0; i < n * l; ++i) Z[i] = 0;
  for (int64_t s = 0; s < n; s += kBlock)
    over_panels<T, ProjectPanel>(l, X + s * D, n - s < kBlock ? n - s : kBlock, D, W, l, Z + s * l);
}

}  // namespace
}  // namespace stillhash
