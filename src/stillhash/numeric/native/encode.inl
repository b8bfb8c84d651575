// Rows of features, and their norms, to packed codes: centre, scale, multiply by W a slice of features at a time, add t
// and pack the signs. Each projection is summed in the order of the features alone, as `project` in learn.inl does.
//
// Included after learn.inl by one translation unit per instruction set.

namespace stillhash {
namespace {

constexpr int kEncodeTile = 6;  // rows of a register tile

// (x - mean) / norm of `count` features.
inline void prepare(const float* x, const float* mean, float norm, int64_t count, float* out) {
  using V = typename Vector<float, LANE_BYTES>::type;
  constexpr int L = Vector<float, LANE_BYTES>::lanes;
  int64_t d = 0;
  for (; d + L <= count; d += L)
    *reinterpret_cast<V*>(out + d) =
        (*reinterpret_cast<const V*>(x + d) - *reinterpret_cast<const V*>(mean + d)) / norm;
  for (; d < count; ++d) out[d] = (x[d] - mean[d]) / norm;
}

// c[r][0:N*lanes] += sum_k a[r*kEncodeStride + k] * b[k][0:N*lanes], over columns of panels of W.
template <int N>
inline void encode_tile(int64_t K, const float* a, const float* b, float* c, int64_t rc) {
  using V = typename Vector<float, LANE_BYTES>::type;
  constexpr int L = Vector<float, LANE_BYTES>::lanes;
  const auto at = [](int n) { return n * L / kPanelColumns * kEncodeDepth * kPanelColumns + n * L % kPanelColumns; };
  V acc[kEncodeTile][N];
  for (int r = 0; r < kEncodeTile; ++r)
    for (int n = 0; n < N; ++n) acc[r][n] = *reinterpret_cast<const V*>(c + r * rc + n * L);
  for (int64_t k = 0; k < K; ++k) {
    V bv[N];
    for (int n = 0; n < N; ++n) bv[n] = *reinterpret_cast<const V*>(b + at(n) + k * kPanelColumns);
    for (int r = 0; r < kEncodeTile; ++r)
      for (int n = 0; n < N; ++n) acc[r][n] = fused(broadcast<V>(a[r * kEncodeStride + k]), bv[n], acc[r][n]);
  }
  for (int r = 0; r < kEncodeTile; ++r)
    for (int n = 0; n < N; ++n) *reinterpret_cast<V*>(c + r * rc + n * L) = acc[r][n];
}

// N vectors of columns for all tiles of rows.
template <int N>
inline void encode_columns(int64_t rows, int64_t K, const float* a, const float* b, float* c, int64_t rc) {
  for (int64_t r = 0; r < rows; r += kEncodeTile) encode_tile<N>(K, a + r * kEncodeStride, b, c + r * rc, rc);
}

// Z (n, columns of all panels) += the prepared rows times one slice of W.
inline void multiply_slice(int64_t n, int64_t K, int64_t panels, const float* a, const float* b, float* Z) {
  constexpr int L = Vector<float, LANE_BYTES>::lanes;
  const int64_t rc = panels * kPanelColumns, slice = kEncodeDepth * kPanelColumns;
  int64_t p = 0;
  if constexpr (L == kPanelColumns) {
    for (; p + 4 <= panels; p += 4) encode_columns<4>(n, K, a, b + p * slice, Z + p * kPanelColumns, rc);
    for (; p + 2 <= panels; p += 2) encode_columns<2>(n, K, a, b + p * slice, Z + p * kPanelColumns, rc);
    for (; p < panels; ++p) encode_columns<1>(n, K, a, b + p * slice, Z + p * kPanelColumns, rc);
  } else {
    for (; p < panels; ++p)
      for (int half = 0; half < kPanelColumns; half += 2 * L)
        encode_columns<2>(n, K, a, b + p * slice + half, Z + p * kPanelColumns + half, rc);
  }
}

// Up to kEncodeRows rows; the scratch is Z and the prepared rows.
void encode(const HashFunctions& f, const float* X, const float* norms, int64_t n, float* scratch, uint8_t* codes) {
  static_assert(kEncodeRows % kEncodeTile == 0, "tile sizes");
  const int64_t D = f.D, panels = panel_count(f.bits), bytes = (f.bits + 7) / 8;
  const int64_t rc = f.panels ? panels * kPanelColumns : f.bits;
  const auto length = [&](int64_t r) { return f.unit_norm && norms[r] > 0 ? norms[r] : 1.0f; };
  float* Z = scratch;                                   // (kEncodeRows, columns of all panels)
  float* a = Z + kEncodeRows * panels * kPanelColumns;  // prepared rows
  if (f.panels) {
    for (int64_t i = 0; i < n * rc; ++i) Z[i] = 0;
    for (int64_t d = 0; d < D; d += kEncodeDepth) {
      const int64_t K = D - d < kEncodeDepth ? D - d : kEncodeDepth;
      for (int64_t r = 0; r < n; ++r) prepare(X + r * D + d, f.mean + d, length(r), K, a + r * kEncodeStride);
      multiply_slice(n, K, panels, a, f.panels + d * panels * kPanelColumns, Z);
    }
  } else {
    for (int64_t r = 0; r < n; ++r) prepare(X + r * D, f.mean, length(r), D, a + r * D);
    project(a, n, D, f.W, static_cast<int64_t>(f.bits), Z);
  }
  for (int64_t r = 0; r < n; ++r)
    for (int64_t byte = 0; byte < bytes; ++byte) {
      const int64_t first = byte * 8, count = f.bits - first < 8 ? f.bits - first : 8;
      unsigned ones = 0;
      for (int64_t i = first; i < first + count; ++i)
        ones |= static_cast<unsigned>(Z[r * rc + i] + f.t[i] >= 0) << (i - first);
      codes[r * bytes + byte] = static_cast<uint8_t>(ones);
    }
}

}  // namespace
}  // namespace stillhash
