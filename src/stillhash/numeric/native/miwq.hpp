// Multi-Index Weighted Querying (Weng, Zhu; AAAI 2020): the exact top k without reading every code.
//
// The bits are cut into m substrings, each with a table from its value to the rows that have it. For a query, the
// buckets of a table are probed in order of the loss their value costs. A row not yet seen has, in every
// table t, a loss of at least the frontier F_t up to which that table has been probed, so its whole loss is at
// least sum F_t; once no hit can lose that much, the search is complete.
#pragma once
#include <cstdint>
#include <vector>

#include "ranking.hpp"

namespace stillhash {

// Rows grouped by the value of `width` bits from bit `at` (CSR): bucket v holds slots[starts[v]..starts[v + 1]), and
// their codes in the same order, so that a bucket is read in one go.
struct Table {
  int at, width;
  const uint32_t* starts;  // (2^width + 1)
  const uint32_t* slots;   // (rows)
  const uint8_t* codes;    // (rows, planes)
};

// Where rows come from: slot s has the id first + s, or ids[s]; where `live` is given, only slots whose bit is set.
struct Slots {
  int64_t first;
  const int64_t* ids;
  const uint8_t* live;
};

// What work costs, in nanoseconds, and how much of it a search may spend before it gives up.
struct Price {
  double probe, row, budget;
};

struct Effort {
  bool complete = false;
  int64_t probes = 0, rows = 0;
};

// Fills starts, slots and codes of a table from n codes and the slots they go by.
void fill_table(const uint8_t* codes, const uint32_t* from, int64_t n, int planes, int at, int width, uint32_t* starts,
                uint32_t* slots, uint8_t* sorted);

// Offers every row that may be a hit, unless the price runs over the budget. If it gives up, the ranking's
// floor still bounds what another search must keep.
Effort miwq(const std::vector<Table>& tables, const Slots& slots, const double* weights, int bits, Ranking& ranking,
            const Price& price);

}  // namespace stillhash
