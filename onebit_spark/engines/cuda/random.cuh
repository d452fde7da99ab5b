// Random numbers of a rating (core/randomness.py), and the row of a rating. No headers, for nvrtc.
//
//   TASK     ratings of a task, as in sums.cu
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
#define STEP 0x9E3779B97F4A7C15ull
#define REPEATED 0x80000000u
#define EVERYONE 0xffffffffu

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

// Where the ratings of each row begin, and the row of the first rating of each task
struct Ratings {
  const i64* pointers;
  const int* first_rows;
  int n_tasks;
  i64 n_rows;

  __device__ __forceinline__ i64 row_of(i64 l) const {
    const int task = (int)(l / TASK);
    i64 low = first_rows[task], high = task + 1 < n_tasks ? (i64)first_rows[task + 1] + 1 : n_rows;
    while (high - low > 1) {  // pointers[low] ≤ l < pointers[high]
      const i64 middle = (low + high) / 2;
      if (pointers[middle] <= l) low = middle; else high = middle;
    }
    return low;
  }
};

__device__ __forceinline__ i64 my_number() { return blockIdx.x * (i64)blockDim.x + threadIdx.x; }
