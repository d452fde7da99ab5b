// Draws from the posteriors, for certificates (core/randomness.py). shapes.py defines the macros.
//
//   SIZE, FIXED, SPREAD     as in lanes.cuh
#include "random.cuh"

#define SCALE (SPREAD ? SIZE : SIZE * (SIZE + 1) / 2)
#define TRIANGLE(a, b) ((a) * ((a) + 1) / 2 + (b))

// Adds to `wrong` the number of draws of ratings' scores with the wrong sign. `roots` are the Cholesky factors of the rows'
// covariances.
extern "C" __global__ void count_errors(const i64* __restrict__ pointers, const int* __restrict__ first_rows, int n_tasks,
                                        i64 n_rows, const u32* __restrict__ codes, const float* __restrict__ row_location,
                                        const double* __restrict__ roots, const float* __restrict__ col_location,
                                        const float* __restrict__ col_scale, u64 seed, int per_rating,
                                        u64* __restrict__ wrong, i64 n) {
  const i64 l = my_number();
  int errors = 0;
  if (l < n) {
    const i64 i = Ratings{pointers, first_rows, n_tasks, n_rows}.row_of(l), j = (codes[l] & ~REPEATED) >> 1;
    const float* mean = row_location + i * SIZE;
    const double* root = roots + i * SCALE;
    const float* z = col_location + j * SIZE;
    const float* v = col_scale + j * SCALE;
    const double sign = codes[l] & 1 ? 1.0 : -1.0;
    u64 state = stream(seed, (u64)i, (u64)(l - pointers[i]));
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
#pragma unroll
  for (int bit = 16; bit > 0; bit >>= 1) errors += __shfl_xor_sync(EVERYONE, errors, bit);
  if ((threadIdx.x & 31) == 0 && errors) atomicAdd(wrong, (u64)errors);
}
