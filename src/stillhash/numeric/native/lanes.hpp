// What differs between instruction sets, and nothing else: a table of the inner loops, one table per
// instruction set. Each table is compiled in a translation unit of its own with that set's flags, so those
// units must not instantiate anything from the standard library that the linker could share with the others.
#pragma once
#include <cstddef>
#include <cstdint>

namespace stillhash {

// Codes per tile; a tile is `planes` runs of kTile bytes. It is small, so that the scan reads memory straight
// through. With tiles of 1,024 codes it reads as many streams as there are planes, which Zen 4 does not fetch
// ahead: 2 to 3 times as slow.
constexpr int kTile = 256;
constexpr int kStrip = 4;                    // tiles that one call of the filter takes at most
constexpr int kWords = kStrip * kTile / 64;  // 64-bit words in a strip's survivor bitmap
constexpr int kGroup = 4;                    // queries that share one pass over a strip
constexpr int kBlock = 64;                   // rows the Passive-Aggressive recursion resolves at once

// A query's quantised losses: for each of the 2 * planes nibbles, 16 lower bounds of its part of the loss.
struct Bound {
  const uint8_t* table;  // (2 * planes, 16)
  uint8_t limit;         // a code whose saturated sum exceeds this cannot be a hit
};

struct HashFunctions;  // see encode.hpp
struct Rotation;       // see rescore.hpp, and
struct RescoreLayout;

// What predicts the labels of a code: see LabelTable.
struct LabelSums {
  const float* table;  // (2 * planes, 16, labels)
  const float* v;      // (labels,)
  int planes;
  int64_t labels;
  int half_powers;
};

struct Lanes {
  const char* name;

  // survivors[q] bit c: code c of these 1 to kStrip tiles may be a hit of query q; bits past them are left as they are.
  // The last queries are `selective`: those that mostly have no survivor. Up to 4 open queries, up to 2 selective
  // ones, or as many of both, up to 2. Where `ahead` is not null, as many bytes from there on are fetched meanwhile.
  void (*filter)(const uint8_t* tiles, int count, int planes, const Bound* bounds, int open, int selective,
                 uint64_t (*survivors)[kWords], const uint8_t* ahead);

  // Exact sequential PA-I over the rows of X, in place on Ut (D, l). See learn.inl for the scratch.
  void (*learn_f32)(float* Ut, const float* X, const int8_t* G, int64_t n, int64_t D, int64_t l, float C,
                    float* scratch);
  void (*learn_f64)(double* Ut, const double* X, const int8_t* G, int64_t n, int64_t D, int64_t l, double C,
                    double* scratch);

  // Z (n, l) = X (n, D) W (D, l); a row of Z depends on its row of X alone, to the last bit.
  void (*project)(const float* X, int64_t n, int64_t D, const float* W, int64_t l, float* Z);

  // The codes of up to kEncodeRows rows with these norms; see encode.inl.
  void (*encode)(const HashFunctions& functions, const float* X, const float* norms, int64_t n, float* scratch,
                 uint8_t* codes);

  // max(x V + v, 0)^(half_powers / 2) of the signs x of a code (labels,), and the power alone of a row of labels.
  void (*predict_labels)(const LabelSums& sums, const uint8_t* code, float* row);
  void (*raise_labels)(float* row, int64_t labels, int half_powers);

  // A row of features rotated in place, or rotated back; and the rescoring code of a rotated row. See rotate.inl.
  void (*rotate)(const Rotation& rotation, float* row, bool back);
  void (*quantise)(const RescoreLayout& layout, float steps, const float* row, float* levels, uint8_t* values,
                   uint8_t* code);

  // Reads every byte once: the speed limit that the scan is measured against.
  uint64_t (*read)(const uint8_t* bytes, size_t n);
};

extern const Lanes kPortable;
#ifdef STILLHASH_X86
extern const Lanes kAvx2;
extern const Lanes kAvx512;
#endif
#ifdef STILLHASH_NEON
extern const Lanes kNeon;
#endif

// Elements of scratch that learn_* needs for features of D columns.
inline size_t learn_scratch(int64_t D) {
  return static_cast<size_t>(D) * kBlock + kBlock * kBlock + 2 * kBlock * 64;
}

}  // namespace stillhash
