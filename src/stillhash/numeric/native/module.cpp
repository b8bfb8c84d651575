// Python bindings of the kernels. Callers have validated their arguments (numeric/kernels.py); here shapes are
// trusted, arrays are C-contiguous, and the GIL is released around all work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "cpu.hpp"
#include "encode.hpp"
#include "lanes.hpp"
#include "memory.hpp"
#include "miwq.hpp"
#include "page.hpp"
#include "quality.hpp"
#include "rescore.hpp"
#include "scan.hpp"
#include "tiles.hpp"
#include "workers.hpp"

namespace nb = nanobind;
using namespace stillhash;

template <class T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N>
using In = Array<const T, N>;

static std::vector<const Lanes*> runnable() {
  std::vector<const Lanes*> runnable_lanes;
#ifdef STILLHASH_X86
  static const Cpu cpu = this_cpu();
  if (cpu.avx512) runnable_lanes.push_back(&kAvx512);
  if (cpu.avx2) runnable_lanes.push_back(&kAvx2);
#endif
#ifdef STILLHASH_NEON
  runnable_lanes.push_back(&kNeon);
#endif
  runnable_lanes.push_back(&kPortable);
  return runnable_lanes;
}

static const Lanes& lanes_named(const std::string& name) {
  for (const Lanes* lanes : runnable())
    if (name == lanes->name) return *lanes;
  throw std::invalid_argument("no such lanes on this machine: " + name);
}

static std::vector<std::string> lanes_here() {
  std::vector<std::string> names;
  for (const Lanes* lanes : runnable()) names.emplace_back(lanes->name);
  return names;
}

// Each block is (tiles, rows, first, ids or None, live or None).
static std::vector<Block> blocks_from(nb::list list) {
  std::vector<Block> blocks;
  for (nb::handle item : list) {
    nb::tuple t = nb::cast<nb::tuple>(item);
    Block block{};
    block.tiles = nb::cast<In<uint8_t, 3>>(t[0]).data();
    block.rows = nb::cast<int64_t>(t[1]);
    block.first = nb::cast<int64_t>(t[2]);
    if (!t[3].is_none()) block.ids = nb::cast<In<int64_t, 1>>(t[3]).data();
    if (!t[4].is_none()) block.live = nb::cast<In<uint8_t, 1>>(t[4]).data();
    blocks.push_back(block);
  }
  return blocks;
}

static void scan_top(const std::string& lanes, nb::list list, In<double, 2> weights, In<float, 1> floors,
                     In<float, 1> ceilings, int threads, Array<float, 2> scores, Array<int64_t, 2> ids) {
  const std::vector<Block> blocks = blocks_from(list);  // the caller's list keeps the arrays alive
  const int64_t queries = weights.shape(0), k = scores.shape(1);
  nb::gil_scoped_release free_gil;
  const auto hits = scan(lanes_named(lanes), blocks, static_cast<int>(weights.shape(1)), weights.data(), queries,
                          k, floors.data(), ceilings.data(), threads);
  for (int64_t q = 0; q < queries; ++q)
    for (size_t i = 0; i < hits[q].size(); ++i) {
      scores.data()[q * k + i] = hits[q][i].score;
      ids.data()[q * k + i] = hits[q][i].id;
    }
}

static nb::list scan_all(const std::string& lanes, nb::list list, In<double, 2> weights, In<float, 1> floors,
                         int threads) {
  const std::vector<Block> blocks = blocks_from(list);
  const std::vector<float> ceilings(weights.shape(0), kNoCeiling);
  std::vector<std::vector<Hit>> by_query;
  {
    nb::gil_scoped_release free_gil;
    by_query = scan(lanes_named(lanes), blocks, static_cast<int>(weights.shape(1)), weights.data(),
                 weights.shape(0), -1, floors.data(), ceilings.data(), threads);
  }
  nb::list out;
  for (const auto& hits : by_query) {
    auto scores = std::make_unique<float[]>(hits.size() + 1);
    auto ids = std::make_unique<int64_t[]>(hits.size() + 1);
    for (size_t i = 0; i < hits.size(); ++i) scores[i] = hits[i].score, ids[i] = hits[i].id;
    nb::capsule own_scores(scores.get(), [](void* p) noexcept { delete[] static_cast<float*>(p); });
    float* s = scores.release();
    nb::capsule own_ids(ids.get(), [](void* p) noexcept { delete[] static_cast<int64_t*>(p); });
    int64_t* d = ids.release();
    out.append(nb::make_tuple(nb::ndarray<nb::numpy, float>(s, {hits.size()}, own_scores),
                              nb::ndarray<nb::numpy, int64_t>(d, {hits.size()}, own_ids)));
  }
  return out;
}

template <class T>
static void learn(const std::string& lanes, Array<T, 2> Ut, In<T, 2> X, In<int8_t, 2> G, T C) {
  const int64_t n = X.shape(0), D = X.shape(1), l = G.shape(1);
  nb::gil_scoped_release free_gil;
  std::unique_ptr<T[]> scratch(new T[learn_scratch(D)]);
  const Lanes& use = lanes_named(lanes);
  if constexpr (sizeof(T) == 4) use.learn_f32(Ut.data(), X.data(), G.data(), n, D, l, C, scratch.get());
  else use.learn_f64(Ut.data(), X.data(), G.data(), n, D, l, C, scratch.get());
}

static void snapped(In<float, 2> weights, Array<double, 2> grid) {
  for (size_t q = 0; q < weights.shape(0); ++q)
    snap(weights.data() + q * weights.shape(1), weights.shape(1), grid.data() + q * weights.shape(1));
}

static void project(const std::string& lanes, In<float, 2> X, In<float, 2> W, Array<float, 2> Z) {
  nb::gil_scoped_release free_gil;
  lanes_named(lanes).project(X.data(), X.shape(0), X.shape(1), W.data(), W.shape(1), Z.data());
}

static void encode(const std::string& lanes, In<float, 2> X, In<float, 1> mean, bool unit_norm, In<float, 2> W,
                   In<float, 1> t, int threads, Array<uint8_t, 2> codes, Array<float, 1> norms) {
  const HashFunctions functions{mean.data(), W.data(), t.data(), nullptr, static_cast<int64_t>(W.shape(0)),
                                static_cast<int>(W.shape(1)), unit_norm};
  nb::gil_scoped_release free_gil;
  encode_rows(lanes_named(lanes), functions, X.data(), X.shape(0), threads, codes.data(), norms.data());
}

static void pack_signs(In<float, 2> Z, Array<uint8_t, 2> codes) {
  const size_t n = Z.shape(0), bits = Z.shape(1), bytes = codes.shape(1);
  nb::gil_scoped_release free_gil;
  std::memset(codes.data(), 0, n * bytes);
  for (size_t r = 0; r < n; ++r)
    for (size_t i = 0; i < bits; ++i)
      codes.data()[r * bytes + i / 8] |= static_cast<uint8_t>((Z.data()[r * bits + i] >= 0) << (i % 8));
}

// Rows `from`, `from` + 1, ... of the tiles become the given codes.
static void write_tiles(Array<uint8_t, 3> tiles, int64_t from, In<uint8_t, 2> codes) {
  const int64_t n = codes.shape(0), planes = codes.shape(1);
  nb::gil_scoped_release free_gil;
  for (int64_t r = 0; r < n; ++r) write_code(tiles.data(), from + r, planes, codes.data() + r * planes);
}

static void read_tiles(In<uint8_t, 3> tiles, In<int64_t, 1> rows, Array<uint8_t, 2> codes) {
  const int64_t n = rows.shape(0), planes = codes.shape(1);
  nb::gil_scoped_release free_gil;
  for (int64_t i = 0; i < n; ++i) read_code(tiles.data(), rows.data()[i], planes, codes.data() + i * planes);
}

// The codes of ids, each from the block that has it; returns how many were found.
static int64_t read_codes(nb::list list, In<int64_t, 1> ids, Array<uint8_t, 2> codes) {
  const std::vector<Block> blocks = blocks_from(list);
  const int64_t n = ids.shape(0), planes = codes.shape(1);
  const size_t count = blocks.size();
  nb::gil_scoped_release free_gil;
  int64_t found = 0;
  size_t b = 0;  // neighbouring ids are often in one block
  for (int64_t i = 0; i < n; ++i)
    for (size_t tried = 0; tried < count; ++tried, b = (b + 1) % count) {
      const int64_t row = row_with(blocks[b], ids.data()[i]);
      if (row < 0) continue;
      read_code(blocks[b].tiles, row, planes, codes.data() + i * planes);
      ++found;
      break;
    }
  return found;
}

static void label_table(In<float, 2> V, Array<float, 3> table) {
  fill_label_table(V.data(), static_cast<int>(V.shape(0)), V.shape(1), table.data());
}

static std::vector<float> table_of(In<float, 2> V) {
  const int bits = static_cast<int>(V.shape(0));
  std::vector<float> table(label_table_size(bits, V.shape(1)));
  fill_label_table(V.data(), bits, V.shape(1), table.data());
  return table;
}

static void labels_of(const std::string& lanes, In<uint8_t, 2> codes, In<float, 2> V, In<float, 1> v, int half_powers,
                      Array<float, 2> labels) {
  const int64_t n = codes.shape(0), l = V.shape(1);
  nb::gil_scoped_release free_gil;
  const std::vector<float> sums = table_of(V);
  const int bits = static_cast<int>(V.shape(0));
  const LabelTable table(lanes_named(lanes), sums.data(), v.data(), bits, l, half_powers);
  for (int64_t i = 0; i < n; ++i) table.predict(codes.data() + i * codes.shape(1), labels.data() + i * l);
}

static void scores_of_page(const std::string& lanes, In<uint8_t, 3> codes, In<float, 2> V, In<float, 1> v,
                           int half_powers, In<float, 2> labels, In<double, 2> similarity, In<double, 1> most,
                           float label_share, float similarity_share, Array<float, 2> scores) {
  const int bits = static_cast<int>(V.shape(0));
  nb::gil_scoped_release free_gil;
  const std::vector<float> sums = table_of(V);
  page_scores({codes.data(), similarity.data(), most.data(), labels.data(), static_cast<int64_t>(codes.shape(0)),
               static_cast<int64_t>(codes.shape(1)), bits, label_share, similarity_share},
              LabelTable(lanes_named(lanes), sums.data(), v.data(), bits, V.shape(1), half_powers), scores.data());
}

static void candidates_of(In<float, 2> scores, In<int64_t, 2> ids, In<uint8_t, 3> codes, In<double, 2> weights,
                          Array<float, 2> to_scores, Array<int64_t, 2> to_ids, Array<uint8_t, 3> to_codes,
                          Array<int64_t, 1> counts) {
  const int64_t n = scores.shape(1), more = ids.shape(1) - n;
  nb::gil_scoped_release free_gil;
  merge_candidates({scores.data(), ids.data(), codes.data(), weights.data(), static_cast<int64_t>(weights.shape(0)), n,
                    more, static_cast<int>(weights.shape(1))},
                   to_scores.data(), to_ids.data(), to_codes.data(), counts.data());
}

// The tuples are kernels.PageCandidates, PageQueries and PageLabels.
static void rescored(const std::string& lanes, nb::tuple candidates, nb::tuple queries, nb::tuple model, int bits,
                     int half_powers, Array<float, 3> parts, Array<int64_t, 2> tiers, Array<float, 1> strength) {
  const auto codes = nb::cast<In<uint8_t, 3>>(candidates[0]);
  const auto levels = nb::cast<In<int16_t, 2>>(queries[0]);
  const auto votes = nb::cast<In<float, 2>>(queries[2]);
  const auto v = nb::cast<In<float, 1>>(model[3]);
  const int code_bits = static_cast<int>(votes.shape(1) ? votes.shape(1) : 8 * codes.shape(2));
  const Lanes& use = lanes_named(lanes);
  const LabelTable table(use, nb::cast<In<float, 3>>(model[2]).data(), v.data(), code_bits, v.shape(0), half_powers);
  const int64_t m = codes.shape(0), n = codes.shape(1);
  const RescoredPage page{m, n, nb::cast<In<int64_t, 1>>(candidates[1]).data(), codes.data(), code_bits,
                          nb::cast<In<uint8_t, 2>>(candidates[2]).data(),
                          nb::cast<In<int64_t, 1>>(candidates[3]).data(),
                          nb::cast<In<int64_t, 1>>(candidates[4]).data(),
                          {static_cast<int64_t>(levels.shape(1)), bits}, levels.data(),
                          nb::cast<In<float, 1>>(queries[1]).data(), votes.shape(1) ? votes.data() : nullptr,
                          nb::cast<In<float, 2>>(queries[3]).data(), nb::cast<In<float, 1>>(queries[4]).data(),
                          nb::cast<float>(queries[5]), nb::cast<bool>(queries[6]), table,
                          nb::cast<In<float, 2>>(model[0]).data(), nb::cast<In<float, 1>>(model[1]).data(),
                          nb::cast<In<float, 1>>(model[5]).data()};
  float* out = parts.data();
  const PageParts to{out, out + m * n, out + 2 * m * n, out + 3 * m * n, tiers.data(), strength.data()};
  nb::gil_scoped_release free_gil;
  rescored_page(use, page, to);
}

static void arranged(In<float, 2> scores, In<int64_t, 2> ids, In<float, 2> again, In<int64_t, 2> tiers,
                     In<double, 2> weights, In<uint8_t, 2> end_codes, In<int64_t, 1> end_ids, In<int64_t, 2> end_counts,
                     Array<float, 2> page_scores, Array<int64_t, 2> page_ids, Array<uint8_t, 2> placed) {
  nb::gil_scoped_release free_gil;
  arrange_page({scores.data(), ids.data(), tiers.data(), again.data(), static_cast<int64_t>(weights.shape(0)),
                static_cast<int64_t>(ids.shape(1)), static_cast<int64_t>(again.shape(1)), weights.data(),
                static_cast<int>(weights.shape(1)), end_codes.data(), end_ids.data(), end_counts.data()},
               page_ids.shape(1), page_scores.data(), page_ids.data(), placed.data());
}

static void table_fill(In<uint8_t, 2> codes, In<uint32_t, 1> from, int at, int width, Array<uint32_t, 1> starts,
                       Array<uint32_t, 1> slots, Array<uint8_t, 2> sorted) {
  nb::gil_scoped_release free_gil;
  fill_table(codes.data(), from.data(), codes.shape(0), static_cast<int>(codes.shape(1)), at, width,
                        starts.data(), slots.data(), sorted.data());
}

// Each table is (at, width, starts, slots, codes).
static std::vector<Table> tables_from(nb::list list) {
  std::vector<Table> tables;
  for (nb::handle item : list) {
    nb::tuple t = nb::cast<nb::tuple>(item);
    tables.push_back({nb::cast<int>(t[0]), nb::cast<int>(t[1]), nb::cast<In<uint32_t, 1>>(t[2]).data(),
                      nb::cast<In<uint32_t, 1>>(t[3]).data(), nb::cast<In<uint8_t, 2>>(t[4]).data()});
  }
  return tables;
}

// The slots are (first, ids or None, live or None); effort (m, 3) becomes probes, rows, completeness of each query.
static void table_top(nb::list list, nb::tuple slot_arrays, In<double, 2> weights, In<float, 1> floors, double probe,
                      double row, In<double, 1> budgets, int threads, Array<float, 2> scores, Array<int64_t, 2> ids,
                      Array<int64_t, 2> effort) {
  const std::vector<Table> tables = tables_from(list);
  Slots slots{nb::cast<int64_t>(slot_arrays[0]), nullptr, nullptr};
  if (!slot_arrays[1].is_none()) slots.ids = nb::cast<In<int64_t, 1>>(slot_arrays[1]).data();
  if (!slot_arrays[2].is_none()) slots.live = nb::cast<In<uint8_t, 1>>(slot_arrays[2]).data();
  const int64_t queries = weights.shape(0), k = scores.shape(1);
  const int bits = static_cast<int>(weights.shape(1));
  nb::gil_scoped_release free_gil;
  const int64_t workers = std::max<int64_t>(1, std::min<int64_t>(threads, queries / 4));
  std::atomic<int64_t> next{0};  // the first query that no thread has claimed
  on_threads(workers, [&](int64_t) {
    for (int64_t q; (q = next.fetch_add(1)) < queries;) {
      const Losses losses(weights.data() + q * bits, bits);
      Ranking ranking(losses, k, floors.data()[q]);
      const Effort spent = miwq(tables, slots, weights.data() + q * bits, bits, ranking, {probe, row, budgets.data()[q]});
      auto& hits = ranking.hits();
      std::sort(hits.begin(), hits.end(), better);
      for (size_t i = 0; i < hits.size(); ++i) {
        scores.data()[q * k + i] = hits[i].score;
        ids.data()[q * k + i] = hits[i].id;
      }
      int64_t* row_effort = effort.data() + q * 3;
      row_effort[0] = spent.probes, row_effort[1] = spent.rows, row_effort[2] = spent.complete;
    }
  });
}

static void quality(In<float, 2> scores, In<float, 2> grades, int64_t page, int64_t depth, Array<double, 2> out) {
  nb::gil_scoped_release free_gil;
  rank_quality(scores.data(), grades.data(), scores.shape(0), scores.shape(1), page, depth, out.data());
}

static void rotate(const std::string& lanes, In<float, 2> X, In<float, 2> signs, bool back, Array<float, 2> rotated) {
  const int64_t n = X.shape(0), dim = X.shape(1);
  const Rotation rotation{signs.data(), static_cast<int64_t>(signs.shape(0)), dim};
  const Lanes& own = lanes_named(lanes);
  nb::gil_scoped_release free_gil;
  for (int64_t i = 0; i < n; ++i) {
    float* row = rotated.data() + i * dim;
    std::copy_n(X.data() + i * dim, dim, row);
    own.rotate(rotation, row, back);
  }
}

static void encode_for_rescore(const std::string& lanes, In<float, 2> X, In<float, 2> signs, float steps, int bits,
                               int threads, Array<uint8_t, 2> codes) {
  const int64_t n = X.shape(0), dim = X.shape(1);
  nb::gil_scoped_release free_gil;
  const Rotation rotation{signs.data(), static_cast<int64_t>(signs.shape(0)), dim};
  rescore_encode(lanes_named(lanes), rotation, {dim, bits}, steps, X.data(), n, threads, codes.data());
}

static void levels_of(const std::string& lanes, In<uint8_t, 2> codes, int bits, Array<float, 2> levels) {
  const int64_t n = codes.shape(0), dim = levels.shape(1);
  nb::gil_scoped_release free_gil;
  rescore_levels(lanes_named(lanes), {dim, bits}, codes.data(), n, levels.data());
}

static void products_of(const std::string& lanes, In<uint8_t, 3> codes, In<int16_t, 2> queries, int bits,
                        Array<int64_t, 2> products) {
  const int64_t m = codes.shape(0), n = codes.shape(1), dim = queries.shape(1);
  nb::gil_scoped_release free_gil;
  rescore_products(lanes_named(lanes), {dim, bits}, codes.data(), queries.data(), m, n, products.data());
}

// Each part is (first, last, numbers or None, places or None, and what is stored, or None if it cannot be read).
static StoredRows stored_rows(nb::tuple part) {
  StoredRows rows{nb::cast<int64_t>(part[0]), nb::cast<int64_t>(part[1]), nullptr, 0, nullptr};
  if (!part[2].is_none()) {
    const auto numbers = nb::cast<In<int64_t, 1>>(part[2]);
    rows.numbers = numbers.data(), rows.count = numbers.shape(0);
  }
  if (!part[3].is_none()) rows.places = nb::cast<In<int64_t, 1>>(part[3]).data();
  return rows;
}

// Reads arrays of bytes of these rows, from the part that has each; others are left as they are.
static void read_arrays(nb::list list, In<int64_t, 1> rows, Array<uint8_t, 2> arrays) {
  constexpr int64_t kAhead = 8;  // arrays that are fetched ahead, since they are far apart
  std::vector<StoredRows> parts;
  std::vector<const uint8_t*> stored;
  for (nb::handle item : list) {
    const auto part = nb::cast<nb::tuple>(item);
    parts.push_back(stored_rows(part));
    stored.push_back(part[4].is_none() ? nullptr : nb::cast<In<uint8_t, 2>>(part[4]).data());
  }
  const int64_t n = rows.shape(0), width = arrays.shape(1);
  nb::gil_scoped_release free_gil;
  std::vector<const uint8_t*> from(n);
  for (int64_t i = 0; i < n; ++i)
    for (size_t p = 0; p < parts.size() && !from[i]; ++p)
      if (const int64_t place = parts[p].place(rows.data()[i]); place >= 0 && stored[p])
        from[i] = stored[p] + place * width;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n && from[i + kAhead])
      for (int64_t at = 0; at < width; at += 64) __builtin_prefetch(from[i + kAhead] + at);
    if (from[i]) std::copy_n(from[i], width, arrays.data() + i * width);
  }
}

// The labels of these rows, one after another, and where those of each begin; of a row that several parts have, those
// of the last. What is stored are codes of sets: set s is part[6][part[5][s] : part[5][s + 1]]. None if one is lost.
static nb::object read_labels(nb::list list, In<int64_t, 1> rows, Array<int64_t, 1> begins) {
  struct Sets {
    StoredRows rows;
    const uint8_t* codes;
    size_t size;  // of a code, in bytes
    const int64_t *starts, *labels;
  };
  std::vector<Sets> parts;
  for (nb::handle item : list) {
    const auto part = nb::cast<nb::tuple>(item);
    parts.push_back({stored_rows(part), nullptr, 0, nullptr, nullptr});
    if (part[4].is_none()) continue;
    const auto codes = nb::cast<nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(part[4]);
    parts.back().codes = static_cast<const uint8_t*>(codes.data()), parts.back().size = codes.itemsize();
    parts.back().starts = nb::cast<In<int64_t, 1>>(part[5]).data();
    parts.back().labels = nb::cast<In<int64_t, 1>>(part[6]).data();
  }
  auto labels = std::make_unique<std::vector<int64_t>>();
  for (size_t i = 0; i < rows.shape(0); ++i) {
    begins.data()[i] = labels->size();
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      const int64_t place = part->rows.place(rows.data()[i]);
      if (place < 0) continue;
      if (!part->codes) return nb::none();
      uint64_t set = 0;
      std::memcpy(&set, part->codes + place * part->size, part->size);  // little-endian
      labels->insert(labels->end(), part->labels + part->starts[set], part->labels + part->starts[set + 1]);
      break;
    }
  }
  begins.data()[rows.shape(0)] = labels->size();
  const nb::capsule owner(labels.get(), [](void* p) noexcept { delete static_cast<std::vector<int64_t>*>(p); });
  std::vector<int64_t>& all = *labels.release();
  return nb::cast(nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>(all.data(), {all.size()}, owner));
}

static bool huge_pages(In<uint8_t, 3> tiles) { return advise_huge_pages(tiles.data(), tiles.size()); }

static uint64_t stream_read(const std::string& lanes, In<uint8_t, 3> tiles) {
  nb::gil_scoped_release free_gil;
  return lanes_named(lanes).read(tiles.data(), tiles.size());
}

NB_MODULE(_native, m) {
  m.attr("TILE") = kTile;
  m.def("lanes", &lanes_here);
  m.def("scan_top", &scan_top);
  m.def("scan_all", &scan_all);
  m.def("learn_f32", &learn<float>);
  m.def("learn_f64", &learn<double>);
  m.def("snap", &snapped);
  m.def("project", &project);
  m.def("encode_rows", &encode);
  m.def("pack_signs", &pack_signs);
  m.def("write_tiles", &write_tiles);
  m.def("read_tiles", &read_tiles);
  m.def("read_codes", &read_codes);
  m.def("predict_labels", &labels_of);
  m.def("label_table", &label_table);
  m.def("page_scores", &scores_of_page);
  m.def("merge_candidates", &candidates_of);
  m.def("rescored_page", &rescored);
  m.def("read_arrays", &read_arrays);
  m.def("read_labels", &read_labels);
  m.def("arrange_page", &arranged);
  m.def("table_fill", &table_fill);
  m.def("table_top", &table_top);
  m.def("rank_quality", &quality);
  m.def("rotate", &rotate);
  m.def("rescore_encode", &encode_for_rescore);
  m.def("rescore_levels", &levels_of);
  m.def("rescore_products", &products_of);
  m.def("advise_huge_pages", &huge_pages);
  m.def("stream_read", &stream_read);
}
