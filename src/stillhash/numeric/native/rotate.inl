// Rotates rows of features, and quantises them to rescoring codes: see rescore.hpp.
//
// Each translation unit of lanes includes this after learn.inl, and takes as many coordinates at a time as it has
// lanes. A coordinate takes part in the same sums in the same order everywhere, so codes are the same to the last bit.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "rescore.hpp"

namespace stillhash {
namespace {

typedef Vector<float, LANE_BYTES>::type RowPart;
constexpr int kRowLanes = Vector<float, LANE_BYTES>::lanes;

RowPart& part(float* x) { return *reinterpret_cast<RowPart*>(x); }

// A stage of the Hadamard transform inside a vector: lane i becomes x_i + x_(i^H), or x_(i^H) - x_i if i has the bit H.
template <int H, int... Lane>
RowPart stage(RowPart x, std::integer_sequence<int, Lane...>) {
  const RowPart signs = {(Lane & H ? -1.0f : 1.0f)...};
#ifdef __clang__
  const RowPart others = __builtin_shufflevector(x, x, (Lane ^ H)...);
#else  // GCC has it since version 12 only
  typedef int32_t Order __attribute__((vector_size(LANE_BYTES)));
  const RowPart others = __builtin_shuffle(x, Order{(Lane ^ H)...});
#endif
  return others + signs * x;
}

template <int H>
RowPart stages(RowPart x) {
  if constexpr (H < kRowLanes) return stages<2 * H>(stage<H>(x, std::make_integer_sequence<int, kRowLanes>()));
  else return x;
}

// The Hadamard transform of p values, a power of two, without its scale. Two stages are done in one pass over the row.
void hadamard(float* x, int64_t p) {
  if (p < kRowLanes) {
    for (int64_t h = 1; h < p; h *= 2)
      for (int64_t i = 0; i < p; ++i)
        if ((i & h) == 0) {
          const float a = x[i], b = x[i + h];
          x[i] = a + b, x[i + h] = a - b;
        }
    return;
  }
  for (float* at = x; at < x + p; at += kRowLanes) part(at) = stages<1>(part(at));
  int64_t h = kRowLanes;
  for (; 4 * h <= p; h *= 4)
    for (float* group = x; group < x + p; group += 4 * h)
      for (float* at = group; at < group + h; at += kRowLanes) {
        const RowPart a = part(at) + part(at + h), b = part(at) - part(at + h);
        const RowPart c = part(at + 2 * h) + part(at + 3 * h), d = part(at + 2 * h) - part(at + 3 * h);
        part(at) = a + c, part(at + h) = b + d, part(at + 2 * h) = a - c, part(at + 3 * h) = b - d;
      }
  if (2 * h <= p)
    for (float* at = x; at < x + h; at += kRowLanes) {
      const RowPart a = part(at), b = part(at + h);
      part(at) = a + b, part(at + h) = a - b;
    }
}

// The first values in even rounds, the last in odd ones.
void transform(float* row, int64_t dim, int64_t round) {
  int64_t p = 1;
  while (2 * p <= dim) p *= 2;
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p)));
  float* x = row + (round % 2 ? dim - p : 0);
  hadamard(x, p);
  for (int64_t i = 0; i < p; ++i) x[i] *= scale;
}

void turn_halves(float* row, int64_t dim) {
  if ((dim & (dim - 1)) == 0) return;
  const float c = static_cast<float>(std::sqrt(0.5));
  const int64_t half = dim / 2;
  int64_t i = 0;
  for (; i + kRowLanes <= half; i += kRowLanes) {
    const RowPart a = part(row + i), b = part(row + half + i);
    part(row + i) = (a + b) * c, part(row + half + i) = (a - b) * c;
  }
  for (; i < half; ++i) {
    const float a = row[i], b = row[half + i];
    row[i] = (a + b) * c, row[half + i] = (a - b) * c;
  }
}

void flip(float* row, const float* signs, int64_t dim) {
  for (int64_t i = 0; i < dim; ++i) row[i] *= signs[i];
}

void rotate(const Rotation& rotation, float* row, bool back) {
  const int64_t dim = rotation.dim;
  for (int64_t r = 0; r < rotation.rounds; ++r) {
    const int64_t round = back ? rotation.rounds - 1 - r : r;
    if (!back) flip(row, rotation.signs + round * dim, dim);
    if (back) turn_halves(row, dim);
    transform(row, dim, round);
    if (!back) turn_halves(row, dim);
    if (back) flip(row, rotation.signs + round * dim, dim);
  }
}

// Bit b of eight bytes, as one byte.
uint8_t gather_bits(const uint8_t* values, int b) {
  uint64_t eight;
  std::memcpy(&eight, values, 8);  // little-endian
  return static_cast<uint8_t>(((eight >> b & 0x0101010101010101) * 0x0102040810204080) >> 56);
}

// Bit b of each of `plane` times eight values.
void write_plane(const uint8_t* values, int64_t plane, int b, uint8_t* bytes) {
  int64_t j = 0;
#ifdef __AVX512BW__
  const __m512i bit = _mm512_set1_epi8(static_cast<char>(1 << b));
  for (; j + 8 <= plane; j += 8) {
    const uint64_t mask = _mm512_test_epi8_mask(_mm512_loadu_si512(values + 8 * j), bit);
    std::memcpy(bytes + j, &mask, 8);
  }
#endif
  for (; j < plane; ++j) bytes[j] = gather_bits(values + 8 * j, b);
}

// Writes the code of a rotated row; levels (dim,) and values (8 * plane,), zero past the end, are scratch.
void quantise(const RescoreLayout& layout, float steps, const float* row, float* __restrict levels,
              uint8_t* __restrict values, uint8_t* code) {
  const int64_t dim = layout.dim;
  const int half = 1 << (layout.bits - 1);
  const float low = static_cast<float>(-half), high = static_cast<float>(half - 1);
  for (int64_t i = 0; i < dim; ++i) {
    float step = row[i] * steps;
    step = step > low ? step : low;
    step = step < high ? step : high;
    int whole = static_cast<int>(step);
    whole -= static_cast<float>(whole) > step;  // rounded down, not towards zero
    levels[i] = static_cast<float>(2 * whole + 1);
    values[i] = static_cast<uint8_t>(whole + half);
  }
  for (int b = 0; b < layout.bits; ++b) write_plane(values, layout.plane, b, code + b * layout.plane);
  const double product = dot(row, levels, dim);
  const float correction = product > 0 ? static_cast<float>(1 / product) : 0.0f;
  std::memcpy(code + layout.bits * layout.plane, &correction, 4);
}

}  // namespace
}  // namespace stillhash
