// Work on single ratings, or on pairs of a row and a column. Header-free, for nvrtc; shapes.py sizes it.
//
//   SIZE, FIXED, SPREAD     as in rows.cu
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
#define PACKED (SIZE * (SIZE + 1) / 2)
#define SCALE (SPREAD ? SIZE : PACKED)
#define TRIANGLE(a, b) ((a) * ((a) + 1) / 2 + (b))
#define STEP 0x9E3779B97F4A7C15ull
#define REPEATED 0x80000000u

// ---- random numbers of a rating (core/randomness.py) -------------------------------------------------------------------

__device__ __forceinline__ u64 scrambled(u64 state) {
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
  return state ^ (state >> 31);
}
__device__ __forceinline__ u64 stream(u64 seed, u64 row, u64 position) {
  const u64 state = scrambled(scrambled(seed + STEP) ^ (row + STEP));
  return scrambled(state ^ (position + STEP));
}
__device__ __forceinline__ double uniform(u64 state) {
  return ((double)(scrambled(state) >> 11) + 0.5) * 1.1102230246251565e-16;  // 2⁻⁵³
}

// Standard normals from a hash of the seed and one or two keys per row (core/spectral_rows.py)
extern "C" __global__ void keyed_normals(const u64* __restrict__ first, const u64* __restrict__ second, u64 seed,
                                         int width, double* __restrict__ out, i64 n) {
  const i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  const i64 i = at / width;
  if (i >= n) return;
  u64 mixed = scrambled(first[i] + seed + STEP);
  if (second) mixed = scrambled(second[i] + mixed + STEP);
  const u64 bits = scrambled((u64)(at % width) + mixed + STEP);
  out[at] = normcdfinv((double)(bits >> 11) * 1.1102230246251565e-16 + 5.551115123125783e-17);
}

// ---- ratings of the rows -----------------------------------------------------------------------------------------------

// Sortable: the row, the column and the label of every rating
extern "C" __global__ void fill_keys(const int* __restrict__ rows, const int* __restrict__ columns,
                                     const unsigned char* __restrict__ positive, u64* __restrict__ keys, i64 n) {
  const i64 l = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (l < n) keys[l] = (u64)(u32)rows[l] << 32 | (u32)columns[l] << 1 | (positive[l] ? 1u : 0u);
}

// The codes of sorted keys: column << 1 | positive, and a bit for a cell that the rating before has as well
extern "C" __global__ void fill_codes(const u64* __restrict__ keys, u32* __restrict__ codes, i64 n) {
  const i64 l = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (l < n) codes[l] = (u32)keys[l] | (l > 0 && keys[l] >> 1 == keys[l - 1] >> 1 ? REPEATED : 0u);
}

// Where the ratings of each row begin among sorted keys
extern "C" __global__ void fill_pointers(const u64* __restrict__ keys, i64* __restrict__ pointers, i64 n_rows, i64 n) {
  const i64 row = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (row > n_rows) return;
  i64 low = 0, high = n;  // all keys before `low` are smaller, none from `high` on is
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (keys[middle] < (u64)row << 32) low = middle + 1; else high = middle;
  }
  pointers[row] = low;
}

// The row of every rating
extern "C" __global__ void rows_of_ratings(const i64* __restrict__ pointers, i64 n_rows, int* __restrict__ out, i64 n) {
  const i64 l = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (l >= n) return;
  i64 low = 0, high = n_rows;  // pointers[low] ≤ l < pointers[high]
  while (high - low > 1) {
    const i64 middle = (low + high) / 2;
    if (pointers[middle] <= l) low = middle; else high = middle;
  }
  out[l] = (int)low;
}

// Of every row: the sum of its weights (of all ratings, of the positive ones) and its number of different columns. A warp
// per row; such sums of float32 numbers are exact in double precision as a rule, in whatever order.
extern "C" __global__ void count_rows(const i64* __restrict__ pointers, const u32* __restrict__ codes,
                                      const float* __restrict__ weights, double* __restrict__ total,
                                      double* __restrict__ positive, int* __restrict__ distinct, i64 n_rows) {
  const i64 row = (blockIdx.x * (i64)blockDim.x + threadIdx.x) >> 5;
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
    all += __shfl_xor_sync(0xffffffffu, all, bit);
    plus += __shfl_xor_sync(0xffffffffu, plus, bit);
    cells += __shfl_xor_sync(0xffffffffu, cells, bit);
  }
  if (lane == 0) { total[row] = all; positive[row] = plus; distinct[row] = cells; }
}

// Whether the coin of every rating chooses it. `cells`: the number of cells up to each rating, for coins per cell.
extern "C" __global__ void toss(const i64* __restrict__ pointers, const int* __restrict__ rows,
                                const i64* __restrict__ cells, u64 seed, double fraction,
                                unsigned char* __restrict__ out, i64 n) {
  const i64 l = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (l >= n) return;
  const i64 row = rows[l], begin = pointers[row];
  const i64 position = cells ? cells[l] - cells[begin] : l - begin;
  out[l] = uniform(stream(seed, (u64)row, (u64)position)) < fraction;
}

// ---- pairs of a row and a column -----------------------------------------------------------------------------------------

#define PAIR_LANES 8

// Mean and variance of the score of every pair: var u = Σ V_i∘z zᵀ + V_j∘(w wᵀ + V_i), w = [1, L_i], z = [1, R_j]; the
// line and the column of an intercept are not in V_i∘V_j.
extern "C" __global__ void pair_moments(const int* __restrict__ rows, const u32* __restrict__ codes,
                                        const float* __restrict__ row_location, const float* __restrict__ row_scale,
                                        const float* __restrict__ col_location, const float* __restrict__ col_scale,
                                        double* __restrict__ score, double* __restrict__ variance, i64 n) {
  const i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  const i64 l = at / PAIR_LANES;
  const int lane = (int)(at % PAIR_LANES);
  double mean = 0.0, spread = 0.0;
  if (l < n) {
    const i64 i = rows[l], j = (codes[l] & ~REPEATED) >> 1;
    const float* x = row_location + i * SIZE;
    const float* z = col_location + j * SIZE;
    for (int a = lane; a < SIZE; a += PAIR_LANES) mean += (FIXED && a == 0) ? (double)x[0] + (double)z[0] : (double)x[a] * (double)z[a];
    for (int q = lane; q < SCALE; q += PAIR_LANES) {
#if SPREAD
      const int a = q, b = q;
      const double si = (double)row_scale[i * SCALE + q], sj = (double)col_scale[j * SCALE + q];
      const double vi = si * si, vj = sj * sj;
#else
      int a = (int)((sqrtf(8.f * q + 1.f) - 1.f) * 0.5f);
      while (TRIANGLE(a + 1, 0) <= q) a++;
      while (TRIANGLE(a, 0) > q) a--;
      const int b = q - TRIANGLE(a, 0);
      const double vi = (double)row_scale[i * SCALE + q], vj = (double)col_scale[j * SCALE + q];
#endif
      const double wa = FIXED && a == 0 ? 1.0 : (double)x[a], wb = FIXED && b == 0 ? 1.0 : (double)x[b];
      const double za = FIXED && a == 0 ? 1.0 : (double)z[a], zb = FIXED && b == 0 ? 1.0 : (double)z[b];
      spread += (a == b ? 1.0 : 2.0) * (vi * za * zb + vj * (wa * wb + (FIXED && b == 0 ? 0.0 : vi)));
    }
  }
#pragma unroll
  for (int bit = 1; bit < PAIR_LANES; bit <<= 1) {
    mean += __shfl_xor_sync(0xffffffffu, mean, bit);
    spread += __shfl_xor_sync(0xffffffffu, spread, bit);
  }
  if (l < n && lane == 0) { score[l] = mean; variance[l] = spread; }
}

// w_l σ(−y_l u_l) of every rating, u_l the mean of its score
extern "C" __global__ void residuals(const int* __restrict__ rows, const u32* __restrict__ codes,
                                     const float* __restrict__ weights, const float* __restrict__ row_location,
                                     const float* __restrict__ col_location, float* __restrict__ out, i64 n) {
  const i64 l = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (l >= n) return;
  const float* x = row_location + (i64)rows[l] * SIZE;
  const float* z = col_location + (i64)((codes[l] & ~REPEATED) >> 1) * SIZE;
  double score = FIXED ? (double)x[0] + (double)z[0] : 0.0;
  for (int a = FIXED; a < SIZE; a++) score += (double)x[a] * (double)z[a];
  const double margin = codes[l] & 1 ? score : -score;
  out[l] = (float)((weights ? (double)weights[l] : 1.0) / (1.0 + exp(margin)));
}

// How many draws of the ratings' scores err, and how many ratings were drawn for: counts[0] and counts[1]. `roots` are
// the Cholesky factors of the rows' covariances. With a split (split_seed ≥ 0) only for ratings that it did not choose.
extern "C" __global__ void count_errors(const i64* __restrict__ pointers, const int* __restrict__ rows,
                                        const u32* __restrict__ codes, const float* __restrict__ row_location,
                                        const double* __restrict__ roots, const float* __restrict__ col_location,
                                        const float* __restrict__ col_scale, u64 seed, int per_rating, i64 split_seed,
                                        double split_fraction, u64* __restrict__ counts, i64 n) {
  const i64 l = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  int errors = 0, drawn = 0;
  if (l < n) {
    const i64 i = rows[l], j = (codes[l] & ~REPEATED) >> 1;
    const u64 position = (u64)(l - pointers[i]);
    if (split_seed < 0 || !(uniform(stream((u64)split_seed, (u64)i, position)) < split_fraction)) {
      drawn = 1;
      const float* mean = row_location + i * SIZE;
      const double* root = roots + i * SCALE;
      const float* z = col_location + j * SIZE;
      const float* v = col_scale + j * SCALE;
      const double sign = codes[l] & 1 ? 1.0 : -1.0;
      u64 state = stream(seed, (u64)i, position);
      for (int turn = 0; turn < per_rating; turn++) {
        double normals[SIZE + 2], x[SIZE];
        for (int k = 0; k < SIZE + 1; k += 2) {
          const double radius = sqrt(-2.0 * log(uniform(state)));
          double sine, cosine;
          sincospi(2.0 * uniform(state + STEP), &sine, &cosine);
          state += STEP + STEP;
          normals[k] = radius * cosine;
          normals[k + 1] = radius * sine;
        }
        state += STEP;
        for (int a = 0; a < SIZE; a++) {
          double s = (double)mean[a];
#if SPREAD
          s += root[a] * normals[a];
#else
          for (int b = 0; b <= a; b++) s += root[TRIANGLE(a, b)] * normals[b];
#endif
          x[a] = s;
        }
        double score = 0.0, variance = 0.0;
#if FIXED
        score = x[0];
        x[0] = 1.0;
#endif
        for (int a = 0; a < SIZE; a++) {
          score += x[a] * (double)z[a];
#if SPREAD
          const double s = (double)v[a] * x[a];
          variance += s * s;
#else
          double part = 0.0;
          for (int b = 0; b < a; b++) part += (double)v[TRIANGLE(a, b)] * x[b];
          variance += x[a] * (2.0 * part + (double)v[TRIANGLE(a, a)] * x[a]);
#endif
        }
        errors += sign * (score + sqrt(fmax(variance, 0.0)) * normals[SIZE]) <= 0.0;
      }
    }
  }
#pragma unroll
  for (int bit = 16; bit > 0; bit >>= 1) {
    errors += __shfl_xor_sync(0xffffffffu, errors, bit);
    drawn += __shfl_xor_sync(0xffffffffu, drawn, bit);
  }
  if ((threadIdx.x & 31) == 0 && drawn) { atomicAdd(counts, (u64)errors); atomicAdd(counts + 1, (u64)drawn); }
}
