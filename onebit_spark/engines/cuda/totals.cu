// Sums over the rows of a side, in double precision and in a fixed order. No headers, for nvrtc.
//
//   SIZE, FIXED, SPREAD     as in lanes.cuh
typedef long long i64;
#define RANK (SIZE - FIXED)
#define SCALE (SPREAD ? SIZE : SIZE * (SIZE + 1) / 2)
#define AUGMENTED (SIZE + FIXED)
#define VECTORS 6  // of implicit features, as in lanes.cuh
#define THREADS 256
#define FOURS ((SIZE + 4) / 4)                                // of a line: AUGMENTED or RANK + 1 numbers
#define PADDED (4 * FOURS)                                    // numbers of a line in shared memory
#define ROWS (PADDED > 40 ? 32 : PADDED > 20 ? 64 : 128)      // rows in shared memory at a time
#define SQUARES (FOURS * FOURS)                               // squares of 4 × 4 products, each summed by one thread
#define SLICES (SQUARES >= THREADS ? 1 : THREADS / SQUARES < ROWS ? THREADS / SQUARES : ROWS)

// The jobs are products of these tables. X: old means, [1, old]; C: their change, [0, new − old]; E: new means minus what
// features explain, [1, new − known]; T = [1, implicit_means]; W, Z and D: implicit vectors, also of rows without ratings;
// [0, 0, S] and [0, 0, Q]: what Z and D of the other side add to the prior means.
enum { SCALES, X_X, C_C, C_X, E_E, T_T, W_W, W_Z, W_D, Z_Z, Z_D, D_D, S_E, Q_E, S_S, S_Q, Q_Q };
enum { X, C, E, T, W, Z, D, S, Q };
__device__ __forceinline__ int left_of(int job) {
  const int kinds[] = {X, X, C, C, E, T, W, W, W, Z, Z, D, S, Q, S, S, Q};
  return kinds[job];
}
__device__ __forceinline__ int right_of(int job) {
  const int kinds[] = {X, X, C, X, E, T, W, Z, D, Z, D, D, E, E, S, Q, Q};
  return kinds[job];
}
__device__ __forceinline__ bool of_weights(int job) { return job >= W_W && job <= D_D; }
__device__ __forceinline__ int width_of(int job) { return of_weights(job) ? RANK : job == T_T ? RANK + 1 : AUGMENTED; }
__device__ __forceinline__ int numbers_of(int job) { return job == SCALES ? SCALE : width_of(job) * width_of(job); }

struct Side {
  const i64* pointers;
  const int* distinct;
  const float* old;
  const float* location;
  const float* explained;
  const float* implicit_means;
  const float* implicit;

  __device__ __forceinline__ bool rated(i64 i) const { return pointers[i + 1] > pointers[i]; }
};

// Copy the lines of ROWS rows to shared memory, with 0 beyond `end` and beyond their width. number(i, k) is read for every
// entry, needed or not, so that a thread issues several reads at once.
#define AT_ONCE 6
template <class Number>
__device__ __forceinline__ void stage(int width, i64 from, i64 end, double* lines, const Number& number) {
  for (int first = threadIdx.x; first < ROWS * PADDED; first += AT_ONCE * THREADS) {
    double value[AT_ONCE];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      const int e = first + u * THREADS, k = e % PADDED;
      const i64 i = from + e / PADDED;
      value[u] = number(i < end ? i : end - 1, k < width ? k : width - 1);
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      const int e = first + u * THREADS;
      if (e < ROWS * PADDED) lines[e] = from + e / PADDED < end && e % PADDED < width ? value[u] : 0.0;
    }
  }
}

__device__ __forceinline__ void stage(const Side& side, int kind, int width, i64 from, i64 end, double* lines) {
  if (kind == W || kind == Z || kind == D) {
    const float* vectors = side.implicit + (kind == W ? 0 : kind - Z + 2) * RANK;
    stage(width, from, end, lines, [=](i64 i, int k) { return (double)vectors[i * (VECTORS * RANK) + k]; });
  } else if (kind == S || kind == Q) {
    const float* vectors = side.implicit + (kind - S + 4) * RANK;
    const int* distinct = side.distinct;
    stage(width, from, end, lines, [=](i64 i, int k) {
      const int at = k > 2 * FIXED ? k - 2 * FIXED : 0;
      const double value = sqrt((double)distinct[i]) * (double)vectors[i * (VECTORS * RANK) + at];
      return k < 2 * FIXED ? 0.0 : value;
    });
  } else if (kind == T) {
    stage(width, from, end, lines, [&](i64 i, int k) {
      const double mean = (double)side.implicit_means[i * RANK + (k > 0 ? k - 1 : 0)];
      return k > 0 ? mean : 1.0;
    });
  } else {  // one array minus up to two others; a null pointer counts as 0
    const float* first = kind == X ? side.old : side.location;
    const float* less = kind == C ? side.old : kind == E ? side.explained : 0;
    const float* implicit_means = kind == E ? side.implicit_means : 0;
    const double by = less ? 1.0 : 0.0, implicit_by = implicit_means ? 1.0 : 0.0, lead = kind == C ? 0.0 : 1.0;
    const int apart = implicit_means ? FIXED : 0;
    if (!less) less = first;
    if (!implicit_means) implicit_means = first;
    stage(width, from, end, lines, [=](i64 i, int k) {
      const int c = k > FIXED ? k - FIXED : 0, f = c > apart ? c - apart : 0;
      const double x = (double)first[i * SIZE + c], y = (double)less[i * SIZE + c];
      const double z = (double)implicit_means[i * (SIZE - apart) + f];
      if (FIXED && k == 0) return lead;
      return x - by * y - (c >= FIXED ? implicit_by * z : 0.0);
    });
  }
}

// out[number · stride] = Σ_i c_i x_i y_iᵀ over the rows begin … end − 1. c_i is |Ω_i| for T, 1 for implicit vectors, else 1 for
// rows with ratings and 0 for others. Each thread sums 4 × 4 products over some of the rows.
__device__ __forceinline__ void gram(const Side& side, int job, i64 begin, i64 end, double* lines, double* counts, double* out,
                                     i64 stride) {
  const int left = left_of(job), right = right_of(job), width = width_of(job);
  double* x = lines;
  double* y = left == right ? x : lines + ROWS * PADDED;
  const int slice = SLICES > 1 ? threadIdx.x / SQUARES : 0;
  for (int pass = 0; pass < SQUARES; pass += THREADS) {
    const int square = SLICES > 1 ? threadIdx.x % SQUARES : pass + threadIdx.x;
    const bool works = square < SQUARES && slice < SLICES;
    const int a = square / FOURS * 4, b = square % FOURS * 4;
    double sums[4][4];
#pragma unroll
    for (int s = 0; s < 16; s++) sums[s / 4][s % 4] = 0.0;
    for (i64 from = begin; from < end; from += ROWS) {
      for (int r = threadIdx.x; r < ROWS; r += THREADS) {
        const i64 i = from + r;
        counts[r] = i >= end ? 0.0 : of_weights(job) ? 1.0 : !side.rated(i) ? 0.0 : job == T_T ? (double)side.distinct[i] : 1.0;
      }
      stage(side, left, width, from, end, x);
      if (left != right) stage(side, right, width, from, end, y);
      __syncthreads();
      if (works)
        for (int r = slice; r < ROWS; r += SLICES) {
          const double2 x0 = *(const double2*)(x + r * PADDED + a), x1 = *(const double2*)(x + r * PADDED + a + 2);
          const double2 y0 = *(const double2*)(y + r * PADDED + b), y1 = *(const double2*)(y + r * PADDED + b + 2);
          const double c = counts[r], u[4] = {c * x0.x, c * x0.y, c * x1.x, c * x1.y}, v[4] = {y0.x, y0.y, y1.x, y1.y};
#pragma unroll
          for (int s = 0; s < 16; s++) sums[s / 4][s % 4] += u[s / 4] * v[s % 4];
        }
      __syncthreads();
    }
#pragma unroll
    for (int s = 0; s < 16; s++) {
      if (SLICES > 1) {
        lines[threadIdx.x] = works ? sums[s / 4][s % 4] : 0.0;
        __syncthreads();
        if (works && slice == 0)
          for (int other = 1; other < SLICES; other++) sums[s / 4][s % 4] += lines[other * SQUARES + square];
        __syncthreads();
      }
      const int i = a + s / 4, j = b + s % 4;
      if (works && slice == 0 && i < width && j < width) out[(i * width + j) * stride] = sums[s / 4][s % 4];
    }
  }
}

// Σ_i over the lines of `scale`; deviations are squared
__device__ __forceinline__ void add_scales(const Side& side, const float* scale, i64 begin, i64 end, double* parts, double* out,
                                           i64 stride) {
  constexpr int TOGETHER = SCALE < THREADS ? THREADS / SCALE : 1;  // rows that are read together
  for (int from = 0; from < SCALE; from += THREADS) {
    const int k = TOGETHER > 1 ? threadIdx.x % SCALE : from + threadIdx.x, r = TOGETHER > 1 ? threadIdx.x / SCALE : 0;
    double s = 0.0;
    if (k < SCALE && r < TOGETHER)
#pragma unroll 8
      for (i64 i = begin + r; i < end; i += TOGETHER) {
        const double v = (double)scale[i * SCALE + k];
        s += side.rated(i) ? (SPREAD ? v * v : v) : 0.0;
      }
    parts[threadIdx.x] = s;
    __syncthreads();
    if (k < SCALE && r == 0) {
      for (int other = 1; other < TOGETHER; other++) s += parts[other * SCALE + k];
      out[k * stride] = s;
    }
    __syncthreads();
  }
}

// out[number][b]: the sums of job `first_job` + blockIdx.y over block b's share of the rows, one job after the other
extern "C" __global__ void __launch_bounds__(THREADS, 2)
statistics(const i64* __restrict__ pointers, const int* __restrict__ distinct, const float* __restrict__ old,
           const float* __restrict__ location, const float* __restrict__ scale, const float* __restrict__ explained,
           const float* __restrict__ implicit_means, const float* __restrict__ implicit, int first_job,
           double* __restrict__ out, i64 n) {
  alignas(16) __shared__ double lines[2 * ROWS * PADDED];
  __shared__ double counts[ROWS];
  const Side side = {pointers, distinct, old, location, explained, implicit_means, implicit};
  const int job = first_job + blockIdx.y;
  const i64 share = (n + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * share;
  const i64 end = begin + share < n ? begin + share : n, blocks = gridDim.x;
  for (int before = first_job; before < job; before++) out += numbers_of(before) * blocks;
  out += blockIdx.x;
  if (job == SCALES) add_scales(side, scale, begin, end, lines, out, blocks);
  else gram(side, job, begin, end, lines, counts, out, blocks);
}
