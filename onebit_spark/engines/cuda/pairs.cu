// Kernels on ratings and the posteriors of their rows and columns. shapes.py defines the macros.
//
//   SIZE, FIXED, SPREAD     as in lanes.cuh
#include "random.cuh"

#define PACKED (SIZE * (SIZE + 1) / 2)
#define SCALE (SPREAD ? SIZE : PACKED)
#define TRIANGLE(a, b) ((a) * ((a) + 1) / 2 + (b))
#define PAIR_LANES 8  // threads that share a rating

struct Posteriors {
  const float* row_location;
  const float* row_scale;
  const float* col_location;
  const float* col_scale;
};

// Mean and variance of the score of a rating, computed by PAIR_LANES threads and returned in all of them:
// var u = Σ V_i∘z zᵀ + V_j∘(w wᵀ + V_i), w = [1, L_i], z = [1, R_j]; V_i∘V_j is without the intercepts' line and column.
__device__ __forceinline__ void pair_moments(const Posteriors& of, bool here, i64 i, i64 j, double& mean, double& variance) {
  const int lane = threadIdx.x % PAIR_LANES;
  mean = variance = 0.0;
  if (here) {
    const float* x = of.row_location + i * SIZE;
    const float* z = of.col_location + j * SIZE;
    for (int a = lane; a < SIZE; a += PAIR_LANES)
      mean += FIXED && a == 0 ? (double)x[0] + (double)z[0] : (double)x[a] * (double)z[a];
    int a = 0, b = lane;
    for (int q = lane; q < SCALE; q += PAIR_LANES) {
#if SPREAD
      a = b = q;
      const double si = (double)of.row_scale[i * SCALE + q], sj = (double)of.col_scale[j * SCALE + q];
      const double vi = si * si, vj = sj * sj;
#else
      while (b > a) { b -= a + 1; a++; }
      const double vi = (double)of.row_scale[i * SCALE + q], vj = (double)of.col_scale[j * SCALE + q];
#endif
      const double wa = FIXED && a == 0 ? 1.0 : (double)x[a], wb = FIXED && b == 0 ? 1.0 : (double)x[b];
      const double za = FIXED && a == 0 ? 1.0 : (double)z[a], zb = FIXED && b == 0 ? 1.0 : (double)z[b];
      variance += (a == b ? 1.0 : 2.0) * (vi * za * zb + vj * (wa * wb + (FIXED && b == 0 ? 0.0 : vi)));
      b += PAIR_LANES;
    }
  }
#pragma unroll
  for (int bit = 1; bit < PAIR_LANES; bit <<= 1) {
    mean += __shfl_xor_sync(EVERYONE, mean, bit);
    variance += __shfl_xor_sync(EVERYONE, variance, bit);
  }
  variance = fmax(variance, 0.0);
}

// Held-out ratings (core/prediction.py): the sums of their losses, of squared losses, of weights, and of wrong signs, as
// sums[0 … 3][block]; and the weights in each bin of the margins, times `units`. No weight counts for less than one unit.
#define THREADS 256
extern "C" __global__ void __launch_bounds__(THREADS)
holdout_loss(const i64* __restrict__ pointers, const int* __restrict__ first_rows, int n_tasks, i64 n_rows,
         const u32* __restrict__ codes, const float* __restrict__ weights, const float* __restrict__ row_location,
         const float* __restrict__ row_scale, const float* __restrict__ col_location, const float* __restrict__ col_scale,
         double noise, double widest, int bins, double units, double* __restrict__ sums, u64* __restrict__ margins, i64 n) {
  __shared__ double parts[4][THREADS];
  const Ratings ratings = {pointers, first_rows, n_tasks, n_rows};
  const Posteriors of = {row_location, row_scale, col_location, col_scale};
  double total[4] = {0.0, 0.0, 0.0, 0.0};
  const i64 stride = gridDim.x * (i64)(THREADS / PAIR_LANES), rounds = (n + stride - 1) / stride;
  for (i64 round = 0; round < rounds; round++) {
    const i64 l = round * stride + my_number() / PAIR_LANES;
    const bool here = l < n;
    double score, variance;
    pair_moments(of, here, here ? ratings.row_of(l) : 0, here ? (codes[l] & ~REPEATED) >> 1 : 0, score, variance);
    if (!here || threadIdx.x % PAIR_LANES) continue;
    const double margin = codes[l] & 1 ? score : -score, weight = weights ? (double)weights[l] : 1.0;
    const double u = -margin / sqrt(1.0 + 3.141592653589793 * variance / 8.0);
    const double loss = fmax(u, 0.0) + log1p(exp(-fabs(u)));
    total[0] += weight * loss;
    total[1] += weight * loss * loss;
    total[2] += weight;
    total[3] += margin <= 0.0;
    const double z = score == 0.0 ? 0.0 : margin / sqrt(noise + variance), place = (z + widest) * (bins / (2.0 * widest));
    const int bin = place > 0.0 ? (place < bins - 1.0 ? (int)place : bins - 1) : 0;
    atomicAdd(margins + bin, (u64)fmax(rint(weight * units), 1.0));
  }
  for (int k = 0; k < 4; k++) parts[k][threadIdx.x] = total[k];
  __syncthreads();
  if (threadIdx.x < 4) {
    double s = 0.0;
    for (int t = 0; t < THREADS; t += PAIR_LANES) s += parts[threadIdx.x][t];
    sums[threadIdx.x * (i64)gridDim.x + blockIdx.x] = s;
  }
}

// The histogram of the signed confidences of every stride-th rating (core/prediction.py)
extern "C" __global__ void confidences(const i64* __restrict__ pointers, const int* __restrict__ first_rows, int n_tasks,
                                       i64 n_rows, const u32* __restrict__ codes, const float* __restrict__ row_location,
                                       const float* __restrict__ row_scale, const float* __restrict__ col_location,
                                       const float* __restrict__ col_scale, double noise, i64 stride, double lowest,
                                       double highest, int per_octave, u64* __restrict__ counts, i64 n) {
  const i64 l = my_number() / PAIR_LANES;
  const Ratings ratings = {pointers, first_rows, n_tasks, n_rows};
  const i64 row = l < n ? ratings.row_of(l) : 0;
  const bool here = l < n && (l - pointers[row] + row) % stride == 0;
  if (!__ballot_sync(EVERYONE, here)) return;
  double score, variance;
  const Posteriors of = {row_location, row_scale, col_location, col_scale};
  pair_moments(of, here, row, here ? (codes[l] & ~REPEATED) >> 1 : 0, score, variance);
  if (!here || threadIdx.x % PAIR_LANES) return;
  const double z = score == 0.0 ? 0.0 : fabs(score) / sqrt(noise + variance);
  const int bins = (int)(highest - lowest) * per_octave;  // per sign
  const int place = z > exp2(lowest) ? (int)((log2(fmin(z, exp2(highest))) - lowest) * per_octave) : 0;
  const int bin = place < bins ? place : bins - 1;
  atomicAdd(counts + (score < 0.0 ? bins - 1 - bin : bins + bin), 1ull);
}

// w_l σ(−y_l u_l) of every rating, u_l the mean of its score
extern "C" __global__ void residuals(const i64* __restrict__ pointers, const int* __restrict__ first_rows, int n_tasks,
                                     i64 n_rows, const u32* __restrict__ codes, const float* __restrict__ weights,
                                     const float* __restrict__ row_location, const float* __restrict__ col_location,
                                     float* __restrict__ out, i64 n) {
  const i64 l = my_number();
  if (l >= n) return;
  const float* x = row_location + Ratings{pointers, first_rows, n_tasks, n_rows}.row_of(l) * SIZE;
  const float* z = col_location + (i64)((codes[l] & ~REPEATED) >> 1) * SIZE;
  double score = FIXED ? (double)x[0] + (double)z[0] : 0.0;
  for (int a = FIXED; a < SIZE; a++) score += (double)x[a] * (double)z[a];
  const double margin = codes[l] & 1 ? score : -score;
  out[l] = (float)((weights ? (double)weights[l] : 1.0) / (1.0 + exp(margin)));
}
