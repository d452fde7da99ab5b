// What the kernels share that read the sums of rows: places of numbers, and the prior of a row.
//
//   GROUP, MOMENTS, SIGNED, IMPLICIT, VALUES as in sums.cu
#include "lanes.cuh"

#define SUMS (VALUES * GROUP)

// ---- places of sums ----------------------------------------------------------------------------------------------------

// The sum of number s of the moments is number s of a row's sums. Here is the signed sum of it
__device__ __forceinline__ int signed_moment(int s) { return s + SIGNED * GROUP; }
// The sum of number s of the implicit vectors: a thread that has fewer than four of them left has room for four
__device__ __forceinline__ int implicit_sum(int s) {
  const int rest = IMPLICIT % 4 ? IMPLICIT % 4 : 4, beyond = s - (IMPLICIT - IMPLICIT % 4) * GROUP;
  return (MOMENTS + SIGNED) * GROUP + (beyond < 0 ? s : s - beyond + 4 * (beyond / rest) + beyond % rest);
}

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
