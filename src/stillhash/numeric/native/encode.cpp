// What encoding does alike on all instruction sets: norms, the layout of W, and the blocks of rows by threads.
#include "encode.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <new>

#include "workers.hpp"

namespace stillhash {
namespace {

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));

constexpr int64_t kWorkOfThread = int64_t{1} << 26;  // multiplications, one or two milliseconds of them
constexpr int kNormRows = 4;  // rows at a time, since the sum of one waits for each addition

// norms[r] = |x - mean|, each summed in the order of NumPy's einsum("ij,ij->i"), whose norms are in stored codes: four
// partial sums; of 16 features the last four come first. This file is compiled for the least of the processors, as
// NumPy's is, so that both add products with or without rounding in between.
template <int R>
void row_norms(const float* X, int64_t D, const float* mean, float* norms) {
  Four sums[R] = {};
  int64_t d = 0;
  const auto add = [&](int64_t at) {
    const Four m = *reinterpret_cast<const Four*>(mean + at);
    for (int r = 0; r < R; ++r) {
      const Four x = *reinterpret_cast<const Four*>(X + r * D + at) - m;
      sums[r] += x * x;
    }
  };
  for (; d + 16 <= D; d += 16)
    for (int part = 3; part >= 0; --part) add(d + 4 * part);
  for (; d + 4 <= D; d += 4) add(d);
  for (int r = 0; r < R; ++r) {
    Four last = {};
    for (int64_t i = d; i < D; ++i) last[i - d] = X[r * D + i] - mean[i];
    if (d < D) sums[r] += last * last;
    norms[r] = std::sqrt((sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]));
  }
}

void all_norms(const float* X, int64_t n, int64_t D, const float* mean, float* norms) {
  int64_t r = 0;
  for (; r + kNormRows <= n; r += kNormRows) row_norms<kNormRows>(X + r * D, D, mean, norms + r);
  for (; r < n; ++r) row_norms<1>(X + r * D, D, mean, norms + r);
}

struct Free {
  void operator()(float* p) const { ::operator delete[](p, std::align_val_t(64)); }
};
using Floats = std::unique_ptr<float[], Free>;

Floats zeros(int64_t count) {
  Floats floats(static_cast<float*>(::operator new[](count * sizeof(float), std::align_val_t(64))));
  std::fill_n(floats.get(), count, 0.0f);
  return floats;
}

// W (D, bits) as (slices of kEncodeDepth features, panels, kEncodeDepth, kPanelColumns), with zeros past its ends.
Floats to_panels(const float* W, int64_t D, int bits) {
  const int64_t panels = panel_count(bits), slices = (D + kEncodeDepth - 1) / kEncodeDepth;
  Floats out = zeros(slices * panels * kEncodeDepth * kPanelColumns);
  for (int64_t d = 0; d < D; ++d)
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t row = (d / kEncodeDepth * panels + p) * kEncodeDepth + d % kEncodeDepth;
      const int64_t columns = std::min<int64_t>(kPanelColumns, bits - p * kPanelColumns);
      std::copy_n(W + d * bits + p * kPanelColumns, columns, out.get() + row * kPanelColumns);
    }
  return out;
}

// Floats of scratch that `Lanes::encode` needs: projections, and prepared rows or slices of them.
int64_t scratch_of(const HashFunctions& f, int64_t n) {
  return kEncodeRows * panel_count(f.bits) * kPanelColumns + (f.panels ? kEncodeRows * kEncodeStride : n * f.D);
}

}  // namespace

void encode_rows(const Lanes& lanes, const HashFunctions& functions, const float* X, int64_t n, int threads,
                 uint8_t* codes, float* norms) {
  const int64_t D = functions.D, bytes = (functions.bits + 7) / 8;
  HashFunctions use = functions;
  Floats panels;
  if (n >= kFewRows) {
    panels = to_panels(functions.W, D, functions.bits);
    use.panels = panels.get();
  }
  const int64_t work = n * D * functions.bits / kWorkOfThread;
  const int64_t blocks = (n + kEncodeRows - 1) / kEncodeRows;
  const int64_t workers = std::max<int64_t>(1, std::min<int64_t>({threads, blocks, work}));
  std::atomic<int64_t> next{0};  // the first block that no thread has claimed
  on_threads(workers, [&](int64_t) {
    const Floats scratch = zeros(scratch_of(use, n));
    for (int64_t block; (block = next.fetch_add(1)) < blocks;) {
      const int64_t at = block * kEncodeRows, rows = std::min<int64_t>(kEncodeRows, n - at);
      all_norms(X + at * D, rows, D, use.mean, norms + at);
      lanes.encode(use, X + at * D, norms + at, rows, scratch.get(), codes + at * bytes);
    }
  });
}

}  // namespace stillhash
