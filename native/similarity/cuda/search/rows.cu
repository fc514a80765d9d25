// Uploading rows. Kernel `measure_rows`: one warp a row reads it twice (the second time from cache) and writes its
// factors; the longest row and the largest error of an fp16 form are maxima, so the order does not matter. Kernel
// `convert_rows`: 8 values a thread. Memory of a collection: data (rows on multiples of 16 bytes, padded with zeros),
// scales, fp16 form, three floats and a double a row.
// Shapes: Rows in rows.cuh.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include "../device/copies.h"
#include "rows.cuh"
#include <cmath>

namespace shoal_cuda {
namespace {

__device__ __forceinline__ double warp_sum(double value) {
  for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  return value;
}

__device__ void raise(double *most, double value) {
  atomicMax(reinterpret_cast<unsigned long long *>(most), static_cast<unsigned long long>(__double_as_longlong(value)));
}

__device__ __forceinline__ float value_at(const Rows &rows, uint32_t row, uint32_t d) {
  const char *from = rows.data + row * rows.stride;
  switch (rows.dtype) {
    case SHOAL_F32:
      return reinterpret_cast<const float *>(from)[d];
    case SHOAL_F16:
      return __half2float(reinterpret_cast<const __half *>(from)[d]);
    default:
      return reinterpret_cast<const int8_t *>(from)[d];
  }
}

__global__ void __launch_bounds__(256) measure_rows(Rows rows, float *dot_factor, float *cosine_factor, float *l2_bias,
                                                    double *length_of, Summary *summary) {
  const uint32_t row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows.count) return;
  double square = 0;
  bool has_nan = false;
  for (uint32_t d = lane; d < rows.dims; d += 32) {
    const double value = value_at(rows, row, d);
    has_nan |= isnan(value);
    square = fma(value, value, square);
  }
  const double stored = sqrt(warp_sum(square)), scale = rows.scales == nullptr ? 1.0 : rows.scales[row],
               length = stored * fabs(scale);
  has_nan = __any_sync(0xffffffffu, has_nan) || isnan(scale);
  const bool is_strange = !has_nan && !(length < 1e30);
  double factor = 1;
  double error = 0;
  if (rows.dtype == SHOAL_F32 && stored > 0 && !has_nan && !is_strange) {
    factor = scalbn(1.0, max(-120, ilogb(stored) - 6));
    const float back = static_cast<float>(1 / factor);
    for (uint32_t d = lane; d < rows.dims; d += 32) {
      const float value = value_at(rows, row, d) * back;
      const double difference = static_cast<double>(value) - static_cast<double>(__half2float(__float2half_rn(value)));
      error = fma(difference, difference, error);
    }
    error = sqrt(warp_sum(error)) * factor / stored;
  }
  if (lane != 0) return;
  if (has_nan) atomicAdd(&summary->nan_rows, 1);
  if (is_strange) atomicAdd(&summary->strange_rows, 1);
  if (!has_nan && !is_strange) {
    raise(&summary->longest, length);
    if (length >= SHOAL_MIN_LENGTH) raise(&summary->half_error, error);
  }
  const float nothing = __int_as_float(0x7fc00000);
  dot_factor[row] = has_nan || is_strange ? nothing : static_cast<float>(factor * scale);
  cosine_factor[row] = has_nan || is_strange       ? nothing
                       : length < SHOAL_MIN_LENGTH ? 0.0f
                                                   : static_cast<float>(factor / stored);
  length_of[row] = length < SHOAL_MIN_LENGTH ? 0.0 : stored; // NaN where a value is none
  l2_bias[row] = has_nan ? 0.0f : static_cast<float>(-length * length);
}

__global__ void __launch_bounds__(256)
    convert_rows(Rows rows, uint32_t first, uint32_t step, uint32_t count, char *half, uint64_t stride) {
  const uint32_t chunks = (rows.dims + 7) / 8;
  const uint64_t at = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const uint64_t i = at / chunks;
  const uint32_t chunk = static_cast<uint32_t>(at % chunks);
  if (i >= count) return;
  const uint32_t row = first + static_cast<uint32_t>(i) * step;
  // What a factor takes away from fp32 values is a power of two; int8 values are fp16 values as they are.
  const float back = rows.dtype == SHOAL_F32 ? 1.0f / rows.dot_factor[row] : 1.0f;
  __half values[8];
#pragma unroll
  for (uint32_t d = 0; d < 8; d++)
    values[d] =
        chunk * 8 + d < rows.dims ? __float2half_rn(value_at(rows, row, chunk * 8 + d) * back) : __float2half_rn(0.0f);
  *reinterpret_cast<uint4 *>(half + i * stride + chunk * 16) = *reinterpret_cast<uint4 *>(values);
}

uint64_t stride_of(const shoal_rows &rows) {
  return divided_up<uint64_t>(rows.dims * element_bytes(rows.dtype), 16) * 16;
}

} // namespace

void check_shape(const shoal_rows &rows) {
  if (rows.count >= 1u << 31)
    fail(SHOAL_CUDA_INVALID, "%llu rows: a device takes fewer than 2^31", static_cast<unsigned long long>(rows.count));
  if (rows.dims == 0 || rows.dims > 1 << 20)
    fail(SHOAL_CUDA_INVALID, "%u dimensions: 1 to 1,048,576 are possible", rows.dims);
  if (rows.scales != nullptr && rows.dtype != SHOAL_I8) fail(SHOAL_CUDA_INVALID, "only int8 rows have scales");
}

Rows lay_out(char *memory, const shoal_rows &of, bool has_half, Summary **summary) {
  Shares shares(memory);
  Rows rows{};
  rows.count = static_cast<uint32_t>(of.count), rows.dims = of.dims, rows.dtype = of.dtype;
  rows.stride = stride_of(of);
  // A tail of one chunk more: the copy engine's boxes may not begin behind the memory.
  rows.data = shares.take<char>(of.count * rows.stride + 256);
  rows.half_stride = half_stride_of(of.dims);
  if (of.dtype == SHOAL_F16)
    rows.half = rows.data;
  else if (has_half)
    rows.half = shares.take<char>(of.count * rows.half_stride + 256);
  rows.scales = of.scales == nullptr ? nullptr : shares.take<float>(of.count);
  rows.dot_factor = shares.take<float>(of.count);
  rows.cosine_factor = shares.take<float>(of.count);
  rows.l2_bias = shares.take<float>(of.count);
  rows.length = shares.take<double>(of.count);
  *summary = shares.take<Summary>(1);
  if (memory == nullptr) rows.count = 0, *summary = reinterpret_cast<Summary *>(shares.used());
  return rows;
}

size_t bytes_for(const shoal_rows &rows, bool has_half) {
  Summary *end;
  lay_out(nullptr, rows, has_half, &end);
  return reinterpret_cast<size_t>(end);
}

void measure(const Rows &rows, Summary *summary, cudaStream_t stream) {
  check(cudaMemsetAsync(summary, 0, sizeof *summary, stream), "lengths");
  measure_rows<<<divided_up(rows.count, 8u), 256, 0, stream>>>(
      rows, const_cast<float *>(rows.dot_factor), const_cast<float *>(rows.cosine_factor),
      const_cast<float *>(rows.l2_bias), const_cast<double *>(rows.length), summary);
  check(cudaGetLastError(), "the kernel of lengths");
  if (rows.half != nullptr && rows.half != rows.data)
    convert(rows, 0, 1, rows.count, const_cast<char *>(rows.half), rows.half_stride, stream);
}

void convert(const Rows &rows, uint32_t first, uint32_t step, uint32_t count, char *half, uint64_t stride,
             cudaStream_t stream) {
  const uint64_t threads = static_cast<uint64_t>(count) * ((rows.dims + 7) / 8);
  convert_rows<<<static_cast<uint32_t>(divided_up<uint64_t>(threads, 256)), 256, 0, stream>>>(rows, first, step, count,
                                                                                              half, stride);
  check(cudaGetLastError(), "the kernel of fp16 forms");
}

} // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" {

uint64_t shoal_cuda_rows_bytes(const shoal_rows *rows, int has_half) { return bytes_for(*rows, has_half != 0); }

int shoal_cuda_upload(int device, const shoal_rows *rows, int has_half, shoal_cuda_rows **uploaded, shoal_stop stop) {
  *uploaded = nullptr;
  return answer([&] {
    check_shape(*rows);
    Lease workspace(device);
    std::unique_ptr<shoal_cuda_rows> made(
        new shoal_cuda_rows{device, Memory(device, bytes_for(*rows, has_half != 0)), {}, nullptr});
    Summary *summary;
    made->rows = lay_out(made->memory.at(), *rows, has_half != 0, &summary);
    if (rows->count > 0) {
      const size_t bytes = rows->dims * element_bytes(rows->dtype);
      if (made->rows.stride != bytes)
        check(cudaMemsetAsync(made->memory.at(), 0, rows->count * made->rows.stride, workspace->stream), "padding");
      copy_in(*workspace, workspace->stream, {made->memory.at(), made->rows.stride}, {rows->data, rows->stride},
              {bytes, rows->count}, stop);
      if (rows->scales != nullptr)
        copy_in(*workspace, workspace->stream, {const_cast<float *>(made->rows.scales), 4}, {rows->scales, 4},
                {4, rows->count}, stop);
      measure(made->rows, summary, workspace->stream);
      made->device_summary = summary;
      check(cudaStreamSynchronize(workspace->stream), "an upload");
    }
    *uploaded = made.release();
  });
}

void shoal_cuda_free_rows(shoal_cuda_rows *rows) {
  if (rows != nullptr) finish_behind(rows->device);
  delete rows;
}

} // extern "C"
