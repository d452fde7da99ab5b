// Sums over the rows of a side, in double precision and in a fixed order. Header-free, for nvrtc.
//
//   SIZE, FIXED, SPREAD     as in rows.cuh
//   TELLS                   whether rows have implicit features
typedef long long i64;
#define RANK (SIZE - FIXED)
#define SCALE (SPREAD ? SIZE : SIZE * (SIZE + 1) / 2)
#define AUGMENTED (SIZE + FIXED)
#define THREADS 256
#define PADDED ((AUGMENTED + 4) / 4 * 4)          // numbers of a line in shared memory
#define MOST_ROWS (PADDED > 32 ? 32 : 64)         // that are there at a time

// What is added up. X are the means before, [1, old]; C their change, [0, new − old]; E the new means less what features
// explain, [1, new − known]; T = [1, told]. Of implicit features: W, Z and D, also of rows without ratings; and what Z and D
// of the other side add to the prior means, [0, 0, S] and [0, 0, Q].
enum { X_X, C_C, C_X, E_E, SCALES, T_T, W_W, W_Z, W_D, Z_Z, Z_D, D_D, S_E, Q_E, S_S, S_Q, Q_Q };
enum { X, C, E, T, W, Z, D, S, Q };
__device__ __forceinline__ int left_of(int job) {
  const int kinds[] = {X, C, C, E, X, T, W, W, W, Z, Z, D, S, Q, S, S, Q};
  return kinds[job];
}
__device__ __forceinline__ int right_of(int job) {
  const int kinds[] = {X, C, X, E, X, T, W, Z, D, Z, D, D, E, E, S, Q, Q};
  return kinds[job];
}
__device__ __forceinline__ bool of_weights(int job) { return job >= W_W && job <= D_D; }
__device__ __forceinline__ int width_of(int job) { return of_weights(job) ? RANK : job == T_T ? RANK + 1 : AUGMENTED; }
__device__ __forceinline__ int numbers_of(int job) { return job == SCALES ? SCALE : width_of(job) * width_of(job); }

struct Rows {
  const i64* pointers;
  const int* distinct;
  const float* old;
  const float* location;
  const float* explained;
  const float* told;
  const float* implicit;

  __device__ __forceinline__ bool rated(i64 i) const { return pointers[i + 1] > pointers[i]; }
  __device__ __forceinline__ double number(int kind, i64 i, int k) const {
    if (kind == W || kind == Z || kind == D) return (double)implicit[i * (6 * RANK) + (kind == W ? 0 : kind - Z + 2) * RANK + k];
    if (kind == S || kind == Q) {
      const int at = k - 2 * FIXED;
      return at < 0 ? 0.0 : sqrt((double)distinct[i]) * (double)implicit[i * (6 * RANK) + (kind - S + 4) * RANK + at];
    }
    if (kind == T) return k == 0 ? 1.0 : (double)told[i * RANK + k - 1];
    if (FIXED && k == 0) return kind == C ? 0.0 : 1.0;
    k -= FIXED;
    const i64 at = i * SIZE + k;
    if (kind == X) return (double)old[at];
    double x = (double)location[at];
    if (kind == C) return x - (double)old[at];
    if (explained) x -= (double)explained[at];
    return told && k >= FIXED ? x - (double)told[i * RANK + k - FIXED] : x;
  }
};

// Σ_i x_i y_iᵀ of the rows begin … end − 1; with |Ω_i| before it where rows tell. Each thread has 4 × 4 products of some
// rows. out[number · stride]
__device__ __forceinline__ void gram(const Rows& rows, int job, i64 begin, i64 end, double* tiles, double* out, i64 stride) {
  const int left = left_of(job), right = right_of(job), width = width_of(job);
  const int fours = (width + 3) / 4, squares = fours * fours;
  const int fit = squares < THREADS ? THREADS / squares : 1, slices = fit < MOST_ROWS ? fit : MOST_ROWS;
  const int length = MOST_ROWS / slices * slices;
  const int slice = threadIdx.x / squares;
  double* x = tiles;
  double* y = left == right && job != T_T ? x : tiles + MOST_ROWS * PADDED;
  for (int pass = 0; pass < squares; pass += THREADS) {
    const int square = slices > 1 ? threadIdx.x % squares : pass + threadIdx.x;
    const bool works = square < squares && slice < slices;
    const int a = square / fours * 4, b = square % fours * 4;
    double sums[4][4];
#pragma unroll
    for (int s = 0; s < 16; s++) sums[s / 4][s % 4] = 0.0;
    for (i64 from = begin; from < end; from += length) {
      for (int e = threadIdx.x; e < length * fours * 4; e += THREADS) {
        const i64 i = from + e / (fours * 4);
        const int k = e % (fours * 4), at = e / (fours * 4) * PADDED + k;
        const bool counted = i < end && k < width && (of_weights(job) || rows.rated(i));
        x[at] = counted ? rows.number(left, i, k) * (job == T_T ? (double)rows.distinct[i] : 1.0) : 0.0;
        if (y != x) y[at] = counted ? rows.number(right, i, k) : 0.0;
      }
      __syncthreads();
      if (works)
        for (int r = slice; r < length; r += slices) {
          const double2 x0 = *(const double2*)(x + r * PADDED + a), x1 = *(const double2*)(x + r * PADDED + a + 2);
          const double2 y0 = *(const double2*)(y + r * PADDED + b), y1 = *(const double2*)(y + r * PADDED + b + 2);
          const double u[4] = {x0.x, x0.y, x1.x, x1.y}, v[4] = {y0.x, y0.y, y1.x, y1.y};
#pragma unroll
          for (int s = 0; s < 16; s++) sums[s / 4][s % 4] += u[s / 4] * v[s % 4];
        }
      __syncthreads();
    }
#pragma unroll
    for (int s = 0; s < 16; s++) {
      if (slices > 1) {
        tiles[threadIdx.x] = works ? sums[s / 4][s % 4] : 0.0;
        __syncthreads();
        if (works && slice == 0)
          for (int other = 1; other < slices; other++) sums[s / 4][s % 4] += tiles[other * squares + square];
        __syncthreads();
      }
      const int i = a + s / 4, j = b + s % 4;
      if (works && slice == 0 && i < width && j < width) out[(i * width + j) * stride] = sums[s / 4][s % 4];
    }
  }
}

// Σ_i of the lines of `scale`, of their squares if they are deviations
__device__ __forceinline__ void add_scales(const Rows& rows, const float* scale, i64 begin, i64 end, double* parts, double* out,
                                           i64 stride) {
  const int side = SCALE < THREADS ? THREADS / SCALE : 1;  // rows that are read together
  for (int from = 0; from < SCALE; from += THREADS) {
    const int k = side > 1 ? threadIdx.x % SCALE : from + threadIdx.x, r = side > 1 ? threadIdx.x / SCALE : 0;
    double s = 0.0;
    if (k < SCALE && r < side)
#pragma unroll 8
      for (i64 i = begin + r; i < end; i += side) {
        const double v = rows.rated(i) ? (double)scale[i * SCALE + k] : 0.0;
        s += SPREAD ? v * v : v;
      }
    parts[threadIdx.x] = s;
    __syncthreads();
    if (k < SCALE && r == 0) {
      for (int other = 1; other < side; other++) s += parts[other * SCALE + k];
      out[k * stride] = s;
    }
    __syncthreads();
  }
}

// The sums of job `first_job` + blockIdx.y, block b's share of the rows: out[number][b], the jobs' numbers one after the other
extern "C" __global__ void __launch_bounds__(THREADS)
statistics(const i64* __restrict__ pointers, const int* __restrict__ distinct, const float* __restrict__ old,
           const float* __restrict__ location, const float* __restrict__ scale, const float* __restrict__ explained,
           const float* __restrict__ told, const float* __restrict__ implicit, int first_job, double* __restrict__ out, i64 n) {
  alignas(16) __shared__ double tiles[2 * MOST_ROWS * PADDED];
  const Rows rows = {pointers, distinct, old, location, explained, told, implicit};
  const int job = first_job + blockIdx.y;
  const i64 share = (n + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * share;
  const i64 end = begin + share < n ? begin + share : n;
  for (int before = first_job; before < job; before++) out += numbers_of(before) * (i64)gridDim.x;
  if (job == SCALES) add_scales(rows, scale, begin, end, tiles, out + blockIdx.x, gridDim.x);
  else gram(rows, job, begin, end, tiles, out + blockIdx.x, gridDim.x);
}

// out[line] = the sum of `count` numbers, for every line of a table
#define MOST_THREADS 1024
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
fold(const double* __restrict__ table, i64 count, double* __restrict__ out) {
  __shared__ double parts[MOST_THREADS];
  const double* line = table + blockIdx.x * count;
  double s = 0.0;
#pragma unroll 4
  for (i64 k = threadIdx.x; k < count; k += blockDim.x) s += line[k];
  parts[threadIdx.x] = s;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = parts[0];
}
