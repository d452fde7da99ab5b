// Solves the system of every row.
#include "rows.cuh"

#define CORE (SIZE - EDGE)                       // with EDGE the last coordinate is handled separately
#define TALL ((CORE + DOWN - 1) / DOWN)          // lines and columns of a matrix that a thread has
#define WIDE ((CORE + ACROSS - 1) / ACROSS)
#define HEIGHT (TALL * DOWN)                     // CORE, rounded up
#define FOURS ((TRIANGLE(SIZE + 1, 0) + 3) / 4)  // of a packed triangle
#define DOUBLES ((2 * FOURS > ACROSS * HEIGHT ? 2 * FOURS : ACROSS * HEIGHT) + 2 * (HEIGHT + EDGE) + 3 * SIZE)

struct alignas(16) Room {
  union {
    float packed[4 * FOURS];  // first Σ E[z zᵀ], finally V
    double parts[ACROSS][HEIGHT];
  };
  double column[2][HEIGHT + EDGE];  // the column of this step; that of the step before may still be read
  double mean[SIZE], right[SIZE], unit[SIZE];
  double spacer[(5 - DOUBLES % 4) % 4 + 1];  // 2 more than a multiple of 4: the rows of a warp are in different banks
};

// 1/x for 0 < x ≤ 1
__device__ __forceinline__ double reciprocal(double x) {
  double r = (double)__fdividef(1.f, (float)x);
  r += r * (1.0 - x * r);
  r += r * (1.0 - x * r);
  return r;
}

// A ─► −A⁻¹ of a matrix with ones on its diagonal: a sweep for every coordinate k,
//
//   a_ij −= a_ik a_kj / a_kk,    a_ik, a_ki /= a_kk,    a_kk = −1/a_kk        for i, j ≠ k.
//
// Thread (y, x) of a row has the lines y, y + DOWN, … and the columns x, x + ACROSS, … in its registers. The matrix stays
// symmetric, so a step needs column k alone, which DOWN threads write to shared memory. With EDGE, every thread has a_i,CORE
// of its lines (`edge`) and the corner. The pivots are at most 1, so line k can be updated like the others, with 1 − 1/a_kk
// instead of a_ik/a_kk. Each pivot is a factor of one thread's `volume`.
__device__ __forceinline__ void sweep(double (&a)[TALL][WIDE], double (&edge)[TALL], double& corner, double& volume,
                                      Room& room, int y, int x) {
  const int lane = x * DOWN + y;
#pragma unroll
  for (int c = 0; c < WIDE; c++) {
    const int r = c / (DOWN / ACROSS), base = c % (DOWN / ACROSS) * ACROSS;  // line k is line r of the threads y = base + t
#pragma unroll 1
    for (int t = 0; t < ACROSS && c * ACROSS + t < CORE; t++) {
      const int k = c * ACROSS + t;
      double* column = room.column[k & 1];
      if (x == t) {
#pragma unroll
        for (int i = 0; i < TALL; i++) column[i * DOWN + y] = a[i][c];
      }
      if (EDGE && lane == base + t) column[HEIGHT] = edge[r];
      SYNC();
      const double d = column[k], p = reciprocal(d);
      double f[TALL];
#pragma unroll
      for (int i = 0; i < TALL; i++) f[i] = column[i * DOWN + y] * p;
      if (y == base + t) f[r] = 1.0 - p;
#pragma unroll
      for (int j = 0; j < WIDE; j++) {
        const double other = column[j * ACROSS + x];
#pragma unroll
        for (int i = 0; i < TALL; i++) a[i][j] -= f[i] * other;
      }
      if (x == t) {
#pragma unroll
        for (int i = 0; i < TALL; i++) a[i][c] = f[i];
        if (y == base + t) a[r][c] = -p;
      }
      if (EDGE) {
        const double last = column[HEIGHT];
#pragma unroll
        for (int i = 0; i < TALL; i++) edge[i] -= f[i] * last;
        corner -= last * last * p;
      }
      if (lane == k % LANES) volume *= d;
    }
  }
#if EDGE
  double* column = room.column[CORE & 1];
  if (x == 0) {
#pragma unroll
    for (int i = 0; i < TALL; i++) column[i * DOWN + y] = edge[i];
  }
  SYNC();
  if (lane == 0) volume *= corner;
  const double p = reciprocal(corner);
#pragma unroll
  for (int i = 0; i < TALL; i++) edge[i] *= p;
#pragma unroll
  for (int j = 0; j < WIDE; j++) {
    const double other = column[j * ACROSS + x];
#pragma unroll
    for (int i = 0; i < TALL; i++) a[i][j] -= edge[i] * other;
  }
  corner = -p;
#endif
}

// x ~ N(A⁻¹ b, A⁻¹) of every row with ratings, from its sums and its prior, to whose mean `implicit_means` are added.
// Writes `implicit_means` and `location`; `scale` and `implicit` change in place. scalars: Σ ½ log det V (or Σ log s),
// and Σ ½κ y E[u] of all ratings.
// Rows without ratings solve x = 0, so that the threads of a warp stay together.
extern "C" __global__ void __launch_bounds__(BLOCK)
solve(const float* __restrict__ acc, const i64* __restrict__ pointers, const int* __restrict__ distinct,
      const double* __restrict__ prior_mean, const double* __restrict__ prior_precision,
      const float* __restrict__ explained, const float* __restrict__ old, float* __restrict__ location,
      float* __restrict__ scale, float* __restrict__ implicit, float* __restrict__ implicit_means,
      double* __restrict__ scalars, i64 n, double relaxation, double ridge) {
  __shared__ Room rooms[ROWS_PER_BLOCK];
  __shared__ bool solved[ROWS_PER_BLOCK];
  const Prior prior = {prior_mean, prior_precision, explained};
  const int member = threadIdx.x / LANES, lane = threadIdx.x % LANES, y = lane % DOWN, x = lane / DOWN;
  const i64 first = blockIdx.x * (i64)ROWS_PER_BLOCK, row = first + member;
  Room& room = rooms[member];
  const bool rated = row < n && pointers[row + 1] > pointers[row];
  const float* sums = acc + row * SUMS;
  const double count = rated && distinct ? (double)distinct[row] : 1.0, root = rsqrt(count);
  if (lane == 0) solved[member] = rated;
  if (rated) {
    for (int q = lane; q < FOURS; q += LANES) ((float4*)room.packed)[q] = __ldcs((const float4*)sums + q);
    for (int k = lane; k < SIZE; k += LANES) {
      double p = prior.mean_of(row, k);
#if IMPLICIT
      if (k >= FIXED) {
        const double mine = implicit_mean(sums, k - FIXED, count, ridge, implicit + row * (VECTORS * RANK));
        implicit_means[row * RANK + k - FIXED] = (float)mine;
        p += mine;
      }
#endif
      room.mean[k] = p;
    }
  }
  SYNC();
  const auto sum = [&](int i, int j) {  // of coordinates of the row
    const int p = beside(i), q = beside(j);
    return (double)room.packed[p > q ? TRIANGLE(p, q) : TRIANGLE(q, p)];
  };
  // A is scaled to ones on its diagonal
  for (int k = lane; k < SIZE; k += LANES) {
    double d = 1.0, b = 0.0;
    if (rated) {
      d = sum(k, k) + prior.precision_of(k, k);
      b = (double)sums[signed_moment(PACKED + beside(k))];
      if (FIXED) b -= (double)room.packed[TRIANGLE(beside(k), 0)];
      for (int j = 0; j < SIZE; j++) b += prior.precision_of(k, j) * room.mean[j];
    }
    room.unit[k] = rsqrt(d);
    room.right[k] = b * room.unit[k];
  }
  SYNC();
  double a[TALL][WIDE], edge[TALL], corner = 1.0, volume = 1.0;
#pragma unroll
  for (int r = 0; r < TALL; r++) {
    const int i = r * DOWN + y;
    const double unit = i < CORE ? room.unit[i] : 0.0;
#pragma unroll
    for (int c = 0; c < WIDE; c++) {
      const int j = c * ACROSS + x;
      const bool inside = i < CORE && j < CORE;
      a[r][c] = inside && i == j ? 1.0 : 0.0;
      if (rated && inside && i != j) a[r][c] = (sum(i, j) + prior.precision_of(i, j)) * unit * room.unit[j];
    }
    edge[r] = 0.0;
    if (EDGE && rated && i < CORE) edge[r] = (sum(i, CORE) + prior.precision_of(i, CORE)) * unit * room.unit[CORE];
  }
  sweep(a, edge, corner, volume, room, y, x);
  // The solution, from the parts of all threads of a line; Σ E[z zᵀ] is no longer needed
  double last = 0.0;
#pragma unroll
  for (int r = 0; r < TALL; r++) {
    const int i = r * DOWN + y;
    double part = 0.0;
#pragma unroll
    for (int c = 0; c < WIDE; c++) {
      const int j = c * ACROSS + x;
      if (j < CORE) part -= a[r][c] * room.right[j];
    }
    if (EDGE && x == 0) {
      part -= edge[r] * room.right[CORE];
      last -= edge[r] * room.right[i];
    }
    room.parts[x][i] = part;
  }
  if (EDGE) last = lane_sum(last) - corner * room.right[CORE];
  SYNC();
  for (int k = lane; k < SIZE; k += LANES) {
    double best = k < CORE ? 0.0 : last;
    if (k < CORE)
      for (int c = 0; c < ACROSS; c++) best += room.parts[c][k];
    room.right[k] = best * room.unit[k];
  }
  SYNC();
#if !SPREAD
#pragma unroll
  for (int r = 0; r < TALL; r++) {
    const int i = r * DOWN + y;
    if (i < CORE) {
#pragma unroll
      for (int c = 0; c < WIDE; c++) {
        const int j = c * ACROSS + x;
        if (j <= i) room.packed[TRIANGLE(i, j)] = (float)(-a[r][c] * room.unit[i] * room.unit[j]);
      }
      if (EDGE && x == 0) room.packed[TRIANGLE(CORE, i)] = (float)(-edge[r] * room.unit[i] * room.unit[CORE]);
    }
  }
  if (EDGE && lane == 0) room.packed[TRIANGLE(CORE, CORE)] = (float)(-corner * room.unit[CORE] * room.unit[CORE]);
  SYNC();
#endif
  double log_volume = rated && !SPREAD ? -0.5 * log(volume) : 0.0, linear = 0.0;
  for (int k = lane; k < SIZE; k += LANES) {
    if (row >= n) continue;
    const double x0 = (double)old[row * SIZE + k];
    if (!rated) {
      location[row * SIZE + k] = (float)x0;
#if IMPLICIT
      if (k >= FIXED) implicit_means[row * RANK + k - FIXED] = 0.f;
#endif
      continue;
    }
    const float reached = (float)(x0 + relaxation * (room.right[k] - x0));
    location[row * SIZE + k] = reached;
#if SPREAD
    scale[row * SIZE + k] = (float)room.unit[k];
    log_volume += log((double)(float)room.unit[k]);
#else
    log_volume += log(room.unit[k]);
#endif
    linear += (double)sums[signed_moment(PACKED + beside(k))] * (double)reached;
    if (FIXED && k == 0) linear += (double)sums[signed_moment(PACKED)];
#if IMPLICIT
    const double shift = (double)reached - room.mean[k];
    if (k >= FIXED) implicit[row * (VECTORS * RANK) + RANK + k - FIXED] = (float)(shift * root);
#endif
  }
  add_up(lane_sum(log_volume), lane_sum(linear), scalars);
#if !SPREAD
  for (int e = threadIdx.x; e < ROWS_PER_BLOCK * PACKED; e += BLOCK)
    if (solved[e / PACKED]) scale[first * PACKED + e] = rooms[e / PACKED].packed[e % PACKED];
#endif
}
