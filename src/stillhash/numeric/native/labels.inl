// Predicts labels of codes: sums over the nibbles of a code, and powers. See LabelTable.
//
// Each translation unit of lanes includes this, so that its compiler takes as many columns at a time as it has lanes.
// Columns do not depend on each other, so the results are the same to the last bit.
namespace stillhash {
namespace {

void raise_labels(float* row, int64_t labels, int half_powers) {
  constexpr int64_t kColumns = 64;
  float base[kColumns];
  for (int64_t c = 0; c < labels; c += kColumns) {
    float* power = row + c;
    const int64_t n = labels - c < kColumns ? labels - c : kColumns;
    for (int64_t i = 0; i < n; ++i) base[i] = power[i] > 0.0f ? power[i] : 0.0f;
    for (int64_t i = 0; i < n; ++i) power[i] = half_powers % 2 ? std::sqrt(base[i]) : 1.0f;
    for (int p = 0; p < half_powers / 2; ++p)
      for (int64_t i = 0; i < n; ++i) power[i] *= base[i];
  }
}

template <int kCount>
void sum_nibbles(const LabelSums& sums, const uint8_t* code, int64_t c, float* row) {
  float columns[kCount] = {};  // in registers
  for (int j = 0; j < sums.planes; ++j) {
    const float* low = sums.table + (j * 32 + (code[j] & 15)) * sums.labels + c;
    const float* high = sums.table + (j * 32 + 16 + (code[j] >> 4)) * sums.labels + c;
    for (int i = 0; i < kCount; ++i) columns[i] += low[i] + high[i];
  }
  for (int i = 0; i < kCount; ++i) row[c + i] = columns[i] + sums.v[c + i];
}

void predict_labels(const LabelSums& sums, const uint8_t* code, float* row) {
  int64_t c = 0;
  for (; c + 64 <= sums.labels; c += 64) sum_nibbles<64>(sums, code, c, row);
  for (; c + 16 <= sums.labels; c += 16) sum_nibbles<16>(sums, code, c, row);
  for (; c + 4 <= sums.labels; c += 4) sum_nibbles<4>(sums, code, c, row);
  for (; c < sums.labels; ++c) sum_nibbles<1>(sums, code, c, row);
  raise_labels(row, sums.labels, sums.half_powers);
}

}  // namespace
}  // namespace stillhash
