// Predicts labels of codes: sums over the nibbles of a code, and powers. See LabelTable.
//
// Each translation unit of lanes includes this after learn.inl, and takes as many columns at a time as it has lanes.
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

// The sums of kVectors vectors of columns from c on, in registers.
template <int Bytes, int kVectors>
void sum_nibbles(const LabelSums& sums, const uint8_t* code, int64_t c, float* row) {
  using V = typename Vector<float, Bytes>::type;
  const auto at = [](const float* numbers, int i) {
    return *reinterpret_cast<const V*>(numbers + i * Vector<float, Bytes>::lanes);
  };
  V columns[kVectors] = {};
  for (int j = 0; j < sums.planes; ++j) {
    const float* low = sums.table + (j * 32 + (code[j] & 15)) * sums.labels + c;
    const float* high = sums.table + (j * 32 + 16 + (code[j] >> 4)) * sums.labels + c;
    for (int i = 0; i < kVectors; ++i) columns[i] += at(low, i) + at(high, i);
  }
  for (int i = 0; i < kVectors; ++i)
    *reinterpret_cast<V*>(row + c + i * Vector<float, Bytes>::lanes) = columns[i] + at(sums.v + c, i);
}

void predict_labels(const LabelSums& sums, const uint8_t* code, float* row) {
  constexpr int64_t kLanes = LANE_BYTES / 4;
  int64_t c = 0;
  for (; c + 4 * kLanes <= sums.labels; c += 4 * kLanes) sum_nibbles<LANE_BYTES, 4>(sums, code, c, row);
  for (; c + kLanes <= sums.labels; c += kLanes) sum_nibbles<LANE_BYTES, 1>(sums, code, c, row);
  for (; c + 4 <= sums.labels; c += 4) sum_nibbles<16, 1>(sums, code, c, row);
  for (; c < sums.labels; ++c) sum_nibbles<0, 1>(sums, code, c, row);
  raise_labels(row, sums.labels, sums.half_powers);
}

}  // namespace
}  // namespace stillhash
