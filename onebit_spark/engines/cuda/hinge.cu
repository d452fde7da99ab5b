// The moves of the hinge loss (core/losses/hinge_kernels.py).
#include "rows.cuh"

#define CANDIDATES 4  // steps of ω, ω/2, ω/4 and ω/8: what SEARCH in sums.cu writes per row
#define PASSES ((SIZE + LANES - 1) / LANES)

// The means and deviations of every row with ratings, from its sums.
//
// With `step`, the way to the minimum of the means' majoriser, and `search`, what the loss gains on it: x moves by the first
// of the fractions that does not raise κ Σ w_l(1 − y_l u_l)_+ + Σ w_a|x_a| + ½ Σ g_a(x_a − p_a)², or stays.
// Without: x moves by −rate times the slope of that, if `rate` is not 0. Here the implicit means are found,
// which `solve` did else. `implicit_means` and `location` are written anew, `scale` and `implicit` in place.
// scalars: Σ log s, Σ g((x − p)² + s²) − 1 − log g, and −(what the data term has beside κ Σ w_l(1 − y_l u_l)_+
// at the old means).
extern "C" __global__ void __launch_bounds__(BLOCK)
move(const float* __restrict__ acc, const float* __restrict__ search, const i64* __restrict__ pointers,
     const int* __restrict__ distinct, const double* __restrict__ prior_mean, const double* __restrict__ prior_precision,
     const float* __restrict__ own_mean, const float* __restrict__ own_deviation, const float* __restrict__ explained,
     const float* __restrict__ old, const float* __restrict__ step, float* __restrict__ location, float* scale,
     float* implicit, float* implicit_means, double* __restrict__ scalars, i64 n, double relaxation, double ridge, double rate,
     int move_covariances) {
  const Prior prior = {prior_mean, prior_precision, own_mean, own_deviation, explained};
  const int lane = threadIdx.x % LANES;
  const i64 i = blockIdx.x * (i64)ROWS_PER_BLOCK + threadIdx.x / LANES;
  const bool rated = i < n && pointers[i + 1] > pointers[i];
  const float* sums = acc + i * SUMS;
  const double count = rated && distinct ? (double)distinct[i] : 1.0;
  double centre[PASSES], log_volume = 0.0, distance = 0.0, data = 0.0, fraction = 0.0, gain = 0.0, rise[CANDIDATES];
#pragma unroll
  for (int c = 0; c < CANDIDATES; c++) rise[c] = 0.0;
#pragma unroll
  for (int pass = 0; pass < PASSES; pass++) {
    const int k = lane + pass * LANES;
    if (!rated || k >= SIZE) continue;
    double p = prior.mean_of(i, k);
#if IMPLICIT
    if (k >= FIXED) {
      float& mine = implicit_means[i * RANK + k - FIXED];
      if (!step) mine = (float)implicit_mean(sums, k - FIXED, count, ridge, implicit + i * (VECTORS * RANK));
      p += (double)mine;
    }
#endif
    centre[pass] = p;
    if (step) {
      const double x = (double)old[i * SIZE + k];
      const double w = slope_of_mean(sums, k), g = prior.precision_of(i, k, k);
#pragma unroll
      for (int c = 0; c < CANDIDATES; c++) {
        const double change = relaxation / (1 << c) * (double)step[i * SIZE + k];
        rise[c] += w * (fabs(x + change) - fabs(x)) + g * change * (x - p + 0.5 * change);
      }
    }
  }
#pragma unroll
  for (int c = CANDIDATES - 1; c >= 0; c--) {
    const double change = rated && step ? (double)search[i * CANDIDATES + c] : 0.0;
    if (lane_sum(rise[c]) + change <= 0.0) { fraction = relaxation / (1 << c); gain = change; }
  }
#pragma unroll
  for (int pass = 0; pass < PASSES; pass++) {
    const int k = lane + pass * LANES;
    if (i >= n || k >= SIZE) continue;
    double x = (double)old[i * SIZE + k];
    if (rated) {
      const double w = slope_of_mean(sums, k), a = slope_of_spread(sums, k), g = prior.precision_of(i, k, k);
      if (step) x += fraction * (double)step[i * SIZE + k];
      else if (rate != 0.0) {
        const double pull = (double)sums[signed_moment(PACKED + beside(k))], sign = x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : 0.0;
        x -= rate * (w * sign + g * (x - centre[pass]) - pull);
      }
      x = (double)(float)x;
      if (move_covariances) scale[i * SIZE + k] = (float)(2.0 / (a + sqrt(a * a + 4.0 * g)));
      const double s = (double)scale[i * SIZE + k], shift = x - centre[pass];
      log_volume += log(s);
      distance += g * (shift * shift + s * s) - 1.0 - log(g);
      data += w * fabs(x) + a * s;
      if (FIXED && k == 0) data += SPREAD_FACTOR * (double)sums[weighed_sum(0)];
#if IMPLICIT
      if (k >= FIXED) implicit[i * (VECTORS * RANK) + RANK + k - FIXED] = (float)(shift * rsqrt(count));
#endif
    }
    location[i * SIZE + k] = (float)x;
#if IMPLICIT
    if (!rated && k >= FIXED) implicit_means[i * RANK + k - FIXED] = 0.f;
#endif
  }
  if (lane == 0) data += gain;
  add_up(lane_sum(log_volume), lane_sum(distance), -lane_sum(data), scalars);
}
