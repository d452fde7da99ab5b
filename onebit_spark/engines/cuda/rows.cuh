// What the kernels share that read the sums of rows: places of numbers, and the prior of a row.
//
//   HINGE     whether the sums are those of the hinge loss
//   GROUP, MOMENTS, SIGNED, IMPLICIT, WEIGHED, VALUES as in sums.cu
#include "lanes.cuh"

#define SUMS (VALUES * GROUP)

// ---- places of sums ----------------------------------------------------------------------------------------------------

// The sum of number s of the moments is number s of a row's sums. Here is the signed sum of it
__device__ __forceinline__ int signed_moment(int s) { return s + SIGNED * GROUP; }
// The same of COUNT numbers per thread that are read apart, and whose values begin at FIRST: a thread that has fewer than
// four left has room for four
template <int COUNT, int FIRST> __device__ __forceinline__ int apart(int s) {
  const int rest = COUNT % 4 ? COUNT % 4 : 4, beyond = s - (COUNT - COUNT % 4) * GROUP;
  return FIRST * GROUP + (beyond < 0 ? s : s - beyond + 4 * (beyond / rest) + beyond % rest);
}
__device__ __forceinline__ int implicit_sum(int s) { return apart<IMPLICIT, MOMENTS + SIGNED>(s); }
__device__ __forceinline__ int weighed_sum(int s) { return apart<WEIGHED, MOMENTS + SIGNED + (IMPLICIT + 3) / 4 * 4>(s); }

// The coordinate of a partner [d, R, 1] (or [R, 1]) that stands beside coordinate a of a row
__device__ __forceinline__ int beside(int a) { return FIXED && a == 0 ? SIZE : a; }

// ---- the prior of a row ------------------------------------------------------------------------------------------------

// N(p, G⁻¹): one p and one matrix G for all rows, or a mean and deviations for each. `explained` is added to p.
struct Prior {
  const double* mean;
  const double* precision;
  const float* own_mean;
  const float* own_deviation;
  const float* explained;

  __device__ __forceinline__ double mean_of(i64 i, int a) const {
    const double p = own_mean ? (double)own_mean[i * SIZE + a] : mean[a];
    return explained ? p + (double)explained[i * SIZE + a] : p;
  }
  __device__ __forceinline__ double precision_of(i64 i, int a, int b) const {
    if (!own_deviation) return precision[b * SIZE + a];
    const double s = (double)own_deviation[i * SIZE + a];
    return a == b ? 1.0 / (s * s) : 0.0;
  }
};

#if IMPLICIT
// What implicit features add to the prior mean of factor k. The row's z, s and q are written.
__device__ __forceinline__ double
implicit_mean(const float* __restrict__ sums, int k, double count, double ridge, float* implicit) {
  implicit[2 * RANK + k] = (float)(((double)sums[implicit_sum(RANK + k)] - ridge * (double)implicit[k]) / (count + ridge));
  implicit[4 * RANK + k] = (float)((double)sums[implicit_sum(2 * RANK + k)] / count);
  implicit[5 * RANK + k] = (float)((double)sums[implicit_sum(3 * RANK + k)] / count);
  return rsqrt(count) * (double)sums[implicit_sum(k)];
}
#endif

#if HINGE
#define SPREAD_FACTOR 0.7978845608028654  // c = √(2/π)
// w_a = κc Σ w_l s_ja, the slope of the objective in |x_a|; a partner's 1 has no deviation
__device__ __forceinline__ double slope_of_mean(const float* __restrict__ sums, int a) {
  return FIXED && a == 0 ? 0.0 : SPREAD_FACTOR * (double)sums[weighed_sum(a)];
}
// κc Σ w_l (|z_ja| + c s_ja), the slope in the deviation of x_a
__device__ __forceinline__ double slope_of_spread(const float* __restrict__ sums, int a) {
  return SPREAD_FACTOR * ((double)sums[weighed_sum(SIZE + a)] + slope_of_mean(sums, a));
}
#endif
