// Shared by the kernels that read the sums of rows: places of sums, and the prior of a row.
//
//   GROUP, MOMENTS, SIGNED, IMPLICIT, VALUES as in sums.cu
#include "lanes.cuh"

#define SUMS (VALUES * GROUP)

// ---- places of sums ----------------------------------------------------------------------------------------------------

// Number s of a row's sums is that of moment s. This is the place of its signed sum.
__device__ __forceinline__ int signed_moment(int s) { return s + SIGNED * GROUP; }
// The place of the sum of number s of the implicit vectors. A thread's last numbers, fewer than four, take four places.
__device__ __forceinline__ int implicit_sum(int s) {
  const int rest = IMPLICIT % 4 ? IMPLICIT % 4 : 4, beyond = s - (IMPLICIT - IMPLICIT % 4) * GROUP;
  return (MOMENTS + SIGNED) * GROUP + (beyond < 0 ? s : s - beyond + 4 * (beyond / rest) + beyond % rest);
}

// The coordinate of the other side's [d, R, 1] (or [R, 1]) that is multiplied by coordinate a of a row
__device__ __forceinline__ int beside(int a) { return FIXED && a == 0 ? SIZE : a; }

// ---- the prior of a row ------------------------------------------------------------------------------------------------

// N(p, G⁻¹): one p and one matrix G for all rows. `explained` is added to p.
struct Prior {
  const double* mean;
  const double* precision;
  const float* explained;

  __device__ __forceinline__ double mean_of(i64 i, int a) const {
    return explained ? mean[a] + (double)explained[i * SIZE + a] : mean[a];
  }
  __device__ __forceinline__ double precision_of(int a, int b) const { return precision[b * SIZE + a]; }
};

#if IMPLICIT
// Returns what implicit features add to the prior mean of factor k, and writes the row's z, s and q.
__device__ __forceinline__ double
implicit_mean(const float* __restrict__ sums, int k, double count, double ridge, float* implicit) {
  implicit[2 * RANK + k] = (float)(((double)sums[implicit_sum(RANK + k)] - ridge * (double)implicit[k]) / (count + ridge));
  implicit[4 * RANK + k] = (float)((double)sums[implicit_sum(2 * RANK + k)] / count);
  implicit[5 * RANK + k] = (float)((double)sums[implicit_sum(3 * RANK + k)] / count);
  return rsqrt(count) * (double)sums[implicit_sum(k)];
}
#endif
