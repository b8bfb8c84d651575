#include "rescore.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "workers.hpp"

#ifdef STILLHASH_X86
#include <immintrin.h>
#endif

namespace stillhash {
namespace {

typedef uint8_t Bytes __attribute__((vector_size(8)));
typedef float Floats __attribute__((vector_size(32), aligned(4)));

constexpr int64_t kBlockRows = 64;   // rows that a thread claims at a time
constexpr int64_t kSumBytes = 4096;  // bytes of a plane whose sum surely fits 32 bits: 2 * 4096 * 32764 < 2^31

// What each byte of a plane adds to the values of its eight dimensions: its bits, a byte each.
const std::array<uint64_t, 256>& spread_bits() {
  static const std::array<uint64_t, 256> table = [] {
    std::array<uint64_t, 256> spread{};
    for (int byte = 0; byte < 256; ++byte)
      for (int i = 0; i < 8; ++i) spread[byte] |= static_cast<uint64_t>(byte >> i & 1) << (8 * i);
    return spread;
  }();
  return table;
}

// table (2 * plane, 16): what each value of four bits adds to the sum of levels times +1 or -1. Dimensions past the end
// add nothing.
void fill_sums(const int16_t* query, int64_t dim, int64_t plane, int16_t* table) {
  for (int64_t nibble = 0; nibble < 2 * plane; ++nibble) {
    int16_t* sums = table + nibble * 16;
    int levels[4] = {};
    for (int64_t i = 0; i < 4 && nibble * 4 + i < dim; ++i) levels[i] = query[nibble * 4 + i];
    sums[0] = static_cast<int16_t>(-(levels[0] + levels[1] + levels[2] + levels[3]));
    for (int i = 0; i < 4; ++i)
      for (int value = 0; value < 1 << i; ++value)
        sums[value + (1 << i)] = static_cast<int16_t>(sums[value] + 2 * levels[i]);
  }
}

// The sum of levels times +1 where a bit of the plane is set, and -1 where not. Eight bytes are read at a time.
int64_t sum_plane(const uint8_t* plane, int64_t bytes, const int16_t* table) {
  int64_t total = 0;
  for (int64_t from = 0; from < bytes; from += kSumBytes) {
    const int64_t end = std::min(bytes, from + kSumBytes);
    int32_t sums[4] = {};
    int64_t j = from;
    for (; j + 8 <= end; j += 8, table += 256) {
      uint64_t eight;
      std::memcpy(&eight, plane + j, 8);  // little-endian
      for (int k = 0; k < 16; ++k) sums[k % 4] += table[16 * k + (eight >> 4 * k & 15)];
    }
    for (; j < end; ++j, table += 32) sums[0] += table[plane[j] & 15] + table[16 + (plane[j] >> 4)];
    for (int32_t sum : sums) total += sum;
  }
  return total;
}

#ifdef STILLHASH_X86
constexpr int64_t kMaskBytes = 4;      // of a plane, and its 32 levels of the query
constexpr int64_t kMaskSteps = 1 << 8;  // whose sum surely fits 32 bits: 256 * 2 * 255 * 8191 < 2^31

// The sum of values times levels, which are zero past the end. Bits are the masks that values are made by.
__attribute__((target("avx512f,avx512bw"))) int64_t sum_values_avx512(const RescoreLayout& layout, const uint8_t* code,
                                                                      const int16_t* levels) {
  __m512i total = _mm512_setzero_si512();
  for (int64_t j = 0; j < layout.plane;) {
    __m512i sums = _mm512_setzero_si512();
    for (int64_t step = 0; step < kMaskSteps && j < layout.plane; ++step, j += kMaskBytes, levels += 32) {
      __m512i values = _mm512_setzero_si512();
      for (int b = 0; b < layout.bits; ++b) {
        uint32_t mask = 0;  // at the end of the last plane, what follows are bytes of the correction
        std::memcpy(&mask, code + b * layout.plane + j, kMaskBytes);
        values = _mm512_or_si512(values, _mm512_maskz_set1_epi16(mask, static_cast<int16_t>(1 << b)));
      }
      sums = _mm512_add_epi32(sums, _mm512_madd_epi16(values, _mm512_loadu_si512(levels)));
    }
    total = _mm512_add_epi64(total, _mm512_cvtepi32_epi64(_mm512_castsi512_si256(sums)));
    total = _mm512_add_epi64(total, _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(sums, 1)));
  }
  return _mm512_reduce_add_epi64(total);
}

// The levels of the dimensions whose bits are whole pairs of bytes; returns how many.
__attribute__((target("avx512f"))) int64_t write_levels_avx512(const RescoreLayout& layout, const uint8_t* code,
                                                              float* levels) {
  const __m512 least = _mm512_set1_ps(static_cast<float>(1 - (1 << layout.bits)));
  int64_t j = 0;
  for (; 8 * (j + 2) <= layout.dim; j += 2) {
    __m512 some = least;
    for (int b = 0; b < layout.bits; ++b) {
      uint16_t mask;
      std::memcpy(&mask, code + b * layout.plane + j, 2);
      some = _mm512_mask_add_ps(some, mask, some, _mm512_set1_ps(static_cast<float>(2 << b)));
    }
    _mm512_storeu_ps(levels + 8 * j, some);
  }
  return 8 * j;
}
#endif

}  // namespace

void rescore_encode(const Lanes& lanes, const Rotation& rotation, const RescoreLayout& layout, float steps,
                    const float* X, int64_t n, int threads, uint8_t* codes) {
  const int64_t dim = layout.dim, blocks = (n + kBlockRows - 1) / kBlockRows;
  const int64_t workers = std::max<int64_t>(1, std::min<int64_t>(threads, blocks));
  std::atomic<int64_t> next{0};  // the first block that no thread has claimed
  on_threads(workers, [&](int64_t) {
    std::vector<float> row(dim), levels(dim);
    std::vector<uint8_t> values(layout.plane * 8);  // zeros past the end
    for (int64_t block; (block = next.fetch_add(1)) < blocks;)
      for (int64_t i = block * kBlockRows; i < std::min(n, (block + 1) * kBlockRows); ++i) {
        std::copy_n(X + i * dim, dim, row.data());
        lanes.rotate(rotation, row.data(), false);
        lanes.quantise(layout, steps, row.data(), levels.data(), values.data(), codes + i * layout.width);
      }
  });
}

void rescore_levels(const Lanes& lanes, const RescoreLayout& layout, const uint8_t* codes, int64_t n, float* levels) {
  (void)lanes;
  const std::array<uint64_t, 256>& spread = spread_bits();
  const float top = static_cast<float>((1 << layout.bits) - 1);
  for (int64_t i = 0; i < n; ++i, codes += layout.width, levels += layout.dim) {
    if (layout.correction(codes) == 0) {
      std::fill_n(levels, layout.dim, 0.0f);
      continue;
    }
    const auto eight_levels = [&](int64_t j) {
      uint64_t eight = 0;
      for (int b = 0; b < layout.bits; ++b) eight |= spread[codes[b * layout.plane + j]] << b;
      Bytes values;
      std::memcpy(&values, &eight, 8);  // little-endian
      return 2.0f * __builtin_convertvector(values, Floats) - top;
    };
    int64_t done = 0;
#ifdef STILLHASH_X86
    if (&lanes == &kAvx512) done = write_levels_avx512(layout, codes, levels);
#endif
    for (int64_t j = done / 8; j < layout.dim / 8; ++j) {
      const Floats eight = eight_levels(j);
      std::memcpy(levels + 8 * j, &eight, 32);
    }
    if (layout.dim % 8) {
      const Floats eight = eight_levels(layout.plane - 1);
      std::memcpy(levels + layout.dim / 8 * 8, &eight, 4 * (layout.dim % 8));
    }
  }
}

void rescore_products(const Lanes& lanes, const RescoreLayout& layout, const uint8_t* codes, const int16_t* queries,
                      int64_t m, int64_t n, int64_t* products) {
#ifdef STILLHASH_X86
  if (&lanes == &kAvx512) {
    const int64_t top = (int64_t{1} << layout.bits) - 1;
    std::vector<int16_t> levels((layout.plane + kMaskBytes) * 8);  // zeros past the end
    for (int64_t q = 0; q < m; ++q, queries += layout.dim) {
      std::copy_n(queries, layout.dim, levels.data());
      const int64_t sum = std::accumulate(queries, queries + layout.dim, int64_t{0});
      for (int64_t i = 0; i < n; ++i, codes += layout.width)
        *products++ = 2 * sum_values_avx512(layout, codes, levels.data()) - top * sum;
    }
    return;
  }
#endif
  (void)lanes;
  std::vector<int16_t> table(layout.plane * 32);
  for (int64_t q = 0; q < m; ++q) {
    if (n > 0) fill_sums(queries + q * layout.dim, layout.dim, layout.plane, table.data());
    for (int64_t i = 0; i < n; ++i, codes += layout.width) {
      int64_t product = 0;
      for (int b = 0; b < layout.bits; ++b)
        product += sum_plane(codes + b * layout.plane, layout.plane, table.data()) * (int64_t{1} << b);
      *products++ = product;
    }
  }
}

}  // namespace stillhash
