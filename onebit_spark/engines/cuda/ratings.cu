// Kernels on ratings that do not need the posteriors of their rows and columns.
#include "random.cuh"

// ---- sorting -----------------------------------------------------------------------------------------------------------

// Sortable keys of the row, the column and the label of every rating
extern "C" __global__ void fill_keys(const int* __restrict__ rows, const int* __restrict__ columns,
                                     const unsigned char* __restrict__ positive, u64* __restrict__ keys, i64 n) {
  const i64 l = my_number();
  if (l < n) keys[l] = (u64)(u32)rows[l] << 32 | (u32)columns[l] << 1 | (positive[l] ? 1u : 0u);
}

// The keys of the other orientation, from ratings that are sorted by row
extern "C" __global__ void fill_transposed_keys(const i64* __restrict__ pointers, const int* __restrict__ first_rows,
                                                int n_tasks, i64 n_rows, const u32* __restrict__ codes,
                                                u64* __restrict__ keys, i64 n) {
  const i64 l = my_number();
  if (l >= n) return;
  const u32 row = (u32)Ratings{pointers, first_rows, n_tasks, n_rows}.row_of(l), code = codes[l] & ~REPEATED;
  keys[l] = (u64)(code >> 1) << 32 | row << 1 | (code & 1u);
}

// The codes of sorted keys: column << 1 | positive, and a bit that marks a rating of the same cell as the one before
extern "C" __global__ void fill_codes(const u64* __restrict__ keys, u32* __restrict__ codes, i64 n) {
  const i64 l = my_number();
  if (l < n) codes[l] = (u32)keys[l] | (l > 0 && keys[l] >> 1 == keys[l - 1] >> 1 ? REPEATED : 0u);
}

// Where the ratings of each row begin among sorted keys
extern "C" __global__ void fill_pointers(const u64* __restrict__ keys, i64* __restrict__ pointers, i64 n_rows, i64 n) {
  const i64 row = my_number();
  if (row > n_rows) return;
  i64 low = 0, high = n;  // all keys before `low` are smaller, none from `high` on is
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (keys[middle] < (u64)row << 32) low = middle + 1; else high = middle;
  }
  pointers[row] = low;
}

// The row of the first rating of each task
extern "C" __global__ void fill_first_rows(const i64* __restrict__ pointers, i64 n_rows, int* __restrict__ first_rows,
                                           int n_tasks) {
  const i64 task = my_number();
  if (task >= n_tasks) return;
  i64 low = 0, high = n_rows;  // pointers[low] ≤ task · TASK < pointers[high]
  while (high - low > 1) {
    const i64 middle = (low + high) / 2;
    if (pointers[middle] <= task * TASK) low = middle; else high = middle;
  }
  first_rows[task] = (int)low;
}

// ---- a warp per row ----------------------------------------------------------------------------------------------------

// The bit of repeated cells, in codes that have none yet
extern "C" __global__ void mark_repeated(const i64* __restrict__ pointers, const u32* __restrict__ plain,
                                         u32* __restrict__ codes, i64 n_rows) {
  const i64 row = my_number() >> 5;
  if (row >= n_rows) return;
  for (i64 l = pointers[row] + (threadIdx.x & 31); l < pointers[row + 1]; l += 32)
    codes[l] = plain[l] | (l > pointers[row] && plain[l] >> 1 == plain[l - 1] >> 1 ? REPEATED : 0u);
}

// For every row: the sums of its weights and of its positive weights, 1/√ of the first sum (0 without ratings), and the
// number of its different columns. In double precision such sums of float32 numbers are usually exact, in any order.
extern "C" __global__ void count_rows(const i64* __restrict__ pointers, const u32* __restrict__ codes,
                                      const float* __restrict__ weights, double* __restrict__ total,
                                      double* __restrict__ positive, double* __restrict__ root, int* __restrict__ distinct,
                                      i64 n_rows) {
  const i64 row = my_number() >> 5;
  if (row >= n_rows) return;
  const int lane = threadIdx.x & 31;
  double all = 0.0, plus = 0.0;
  int cells = 0;
  for (i64 l = pointers[row] + lane; l < pointers[row + 1]; l += 32) {
    const double w = weights ? (double)weights[l] : 1.0;
    all += w;
    if (codes[l] & 1) plus += w;
    cells += !(codes[l] & REPEATED);
  }
#pragma unroll
  for (int bit = 16; bit > 0; bit >>= 1) {
    all += __shfl_xor_sync(EVERYONE, all, bit);
    plus += __shfl_xor_sync(EVERYONE, plus, bit);
    cells += __shfl_xor_sync(EVERYONE, cells, bit);
  }
  if (lane == 0) { total[row] = all; positive[row] = plus; root[row] = all > 0.0 ? rsqrt(all) : 0.0; distinct[row] = cells; }
}

// Which of 32 adjacent ratings of a row a split chooses; `by` is its place in UNITS (core/randomness.py).
__device__ __forceinline__ u32 chosen(u32 code, bool here, i64 row, u64 seed, double fraction, int by) {
  const u64 column = by == 1 ? 0 : (u64)((code & ~REPEATED) >> 1);
  return __ballot_sync(EVERYONE, here && uniform(stream(seed, by == 2 ? 0 : (u64)row, column)) < fraction);
}

// The number of ratings of every row that a split chooses
extern "C" __global__ void count_split(const i64* __restrict__ pointers, const u32* __restrict__ codes, u64 seed,
                                       double fraction, int by, i64* __restrict__ counts, i64 n_rows) {
  const i64 row = my_number() >> 5;
  if (row >= n_rows) return;
  const int lane = threadIdx.x & 31;
  i64 count = 0;
  for (i64 base = pointers[row]; base < pointers[row + 1]; base += 32) {
    const bool here = base + lane < pointers[row + 1];
    count += __popc(chosen(here ? codes[base + lane] : 0u, here, row, seed, fraction, by));
  }
  if (lane == 0) counts[row] = count;
}

// The ratings of every row that a split chooses, or (wanted = 0) the others; `kept` says where they begin
extern "C" __global__ void write_split(const i64* __restrict__ pointers, const u32* __restrict__ codes,
                                       const float* __restrict__ weights, u64 seed, double fraction, int by, int wanted,
                                       const i64* __restrict__ kept, u32* __restrict__ out, float* __restrict__ out_weights,
                                       i64 n_rows) {
  const i64 row = my_number() >> 5;
  if (row >= n_rows) return;
  const int lane = threadIdx.x & 31;
  const u32 before = (1u << lane) - 1u;
  i64 at = kept[row];
  u32 column = EVERYONE;  // of the rating that was written last
  for (i64 base = pointers[row]; base < pointers[row + 1]; base += 32) {
    const bool here = base + lane < pointers[row + 1];
    const u32 code = here ? codes[base + lane] & ~REPEATED : 0u;
    u32 those = chosen(code, here, row, seed, fraction, by);
    if (!wanted) those = ~those & __ballot_sync(EVERYONE, here);
    const u32 earlier = those & before;
    const u32 neighbour = __shfl_sync(EVERYONE, code >> 1, earlier ? 31 - __clz(earlier) : 0);
    const u32 last = earlier ? neighbour : column;
    if (those >> lane & 1u) {
      out[at + __popc(earlier)] = code | (last == code >> 1 ? REPEATED : 0u);
      if (weights) out_weights[at + __popc(earlier)] = weights[base + lane];
    }
    at += __popc(those);
    const u32 highest = __shfl_sync(EVERYONE, code >> 1, those ? 31 - __clz(those) : 0);
    if (those) column = highest;
  }
}

// ---- counts ------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void add(u64* counts, int k, bool counted) {
  const u32 those = __ballot_sync(EVERYONE, counted);
  if ((threadIdx.x & 31) == 0 && those) atomicAdd(counts + k, (u64)__popc(those));
}

// counts[0]: the number of bytes that are not 0
extern "C" __global__ void count_marked(const unsigned char* __restrict__ marked, u64* __restrict__ counts, i64 n) {
  const i64 k = my_number();
  add(counts, 0, k < n && marked[k]);
}

// counts[0]: the number of keys that differ from the one before
extern "C" __global__ void count_changes(const u64* __restrict__ sorted, u64* __restrict__ counts, i64 n) {
  const i64 k = my_number();
  add(counts, 0, k < n && (k == 0 || sorted[k] != sorted[k - 1]));
}

// The numbers of cells that are rated more than once, of ratings that repeat a cell, and of repeats with another label
extern "C" __global__ void count_repeats(const u32* __restrict__ codes, u64* __restrict__ counts, i64 n) {
  const i64 l = my_number();
  const bool again = l < n && (codes[l] & REPEATED);  // never the first rating
  add(counts, 0, again && !(codes[l - 1] & REPEATED));
  add(counts, 1, again);
  add(counts, 2, again && ((codes[l] ^ codes[l - 1]) & 1));
}

// ---- keys of rows ------------------------------------------------------------------------------------------------------

// Whole numbers as they are; other sums of weights by their bits (core/spectral.py)
__device__ __forceinline__ u64 as_key(double value) {
  return value == rint(value) && value < 9.2e18 ? (u64)value : (u64)__double_as_longlong(value);
}

// A hash of the sums of every row
extern "C" __global__ void hash_rows(const double* __restrict__ total, const double* __restrict__ positive,
                                     u64* __restrict__ out, i64 n) {
  const i64 i = my_number();
  if (i < n) out[i] = scrambled(as_key(positive[i]) + scrambled(as_key(total[i]) + STEP) + STEP);
}

// Normals with this standard deviation from a hash of the seed and the sums of a row, or its number without sums; 0 in rows
// without ratings
extern "C" __global__ void keyed_normals(const i64* __restrict__ pointers, const double* __restrict__ total,
                                         const double* __restrict__ positive, u64 seed, int width, double deviation,
                                         double* __restrict__ out, i64 n) {
  const i64 at = my_number(), i = at / width;
  if (i >= n) return;
  u64 mixed = scrambled((total ? as_key(total[i]) : (u64)i) + seed + STEP);
  if (positive) mixed = scrambled(as_key(positive[i]) + mixed + STEP);
  const u64 bits = scrambled((u64)(at % width) + mixed + STEP);
  const double x = normcdfinv((double)(bits >> 11) * 1.1102230246251565e-16 + 5.551115123125783e-17);
  out[at] = pointers[i + 1] > pointers[i] ? deviation * x : 0.0;
}
