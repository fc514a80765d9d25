// Copies of rows in and out. Shapes: copies.h. Memory: two pinned buffers of COPY_BYTES for each of COPY_THREADS
// threads, which stay with the workspace.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include "copies.h"
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include "../../cpu/threads.h"
#include "facts.h"

namespace shoal_cuda {

namespace {

void copy_rows(char *to, size_t to_stride, const char *from, size_t from_stride, size_t bytes, size_t count) {
  if (to_stride == from_stride)
    std::memcpy(to, from, (count - 1) * to_stride + bytes);
  else
    for (size_t i = 0; i < count; i++) std::memcpy(to + i * to_stride, from + i * from_stride, bytes);
}

/**
 * Each thread has two pinned buffers and fills (or empties) one while the other is copied; each takes the next chunk
 * that nobody has. A buffer is touched only when its event says that the copy before has ended, of this call or an
 * earlier one. `work(next, buffers, events)` does them; next(&first, &rows) is false when there are no more.
 */
template <class Work>
void in_chunks(Workspace &workspace, size_t rows, size_t row_bytes, size_t count, const Work &work) {
  const size_t chunks = divided_up(count, rows);
  const int threads = static_cast<int>(
      std::min<size_t>({static_cast<size_t>(COPY_THREADS), chunks, std::max(1u, std::thread::hardware_concurrency())}));
  const size_t buffer_bytes = std::max(rows * row_bytes, COPY_BYTES);
  for (int i = 0; i < 2 * threads; i++) {
    if (!workspace.staged[i]) workspace.staged[i].reset(new Event);
    if (workspace.staging[i].bytes() >= buffer_bytes) continue;
    check(cudaEventSynchronize(workspace.staged[i]->handle), "a copy");
    workspace.staging[i] = Pinned(buffer_bytes);
  }
  std::atomic<int> thread{0};
  shoal::in_blocks(threads, chunks, [&](auto next) {
    check(cudaSetDevice(workspace.device), "the device");
    const int mine = 2 * thread.fetch_add(1);
    work(
        [&](size_t *first, size_t *some) {
          uint64_t block;
          if (!next(&block)) return false;
          *first = block * rows, *some = std::min(rows, count - block * rows);
          return true;
        },
        workspace.staging + mine, workspace.staged + mine);
  });
}

} // namespace

size_t chunk_rows_of(size_t bytes, size_t count) {
  return std::max<size_t>(1, std::min(COPY_BYTES, std::max(LEAST_COPY_BYTES, bytes * count / COPY_THREADS)) / bytes);
}

void copy_in_chunks(Workspace &workspace, cudaStream_t stream, const Places &places, const From &rows_of,
                    const Extent &extent, shoal_stop stop) {
  const char *const from = static_cast<const char *>(rows_of.at);
  const size_t host_stride = rows_of.apart, bytes = extent.bytes, count = extent.count;
  const auto copy = [&](size_t first, size_t rows, const char *source, size_t apart) {
    char *const target = places.place(first, rows);
    if (places.device_stride == bytes && apart == bytes)
      check(cudaMemcpyAsync(target, source, rows * bytes, cudaMemcpyHostToDevice, stream), "a copy to the device");
    else
      check(cudaMemcpy2DAsync(target, places.device_stride, source, apart, bytes, rows, cudaMemcpyHostToDevice, stream),
            "a copy to the device");
    places.placed(first, rows);
  };
  if (is_pinned(from)) {
    for (size_t first = 0; first < count; first += places.chunk_rows) {
      refuse_stopped(stop);
      copy(first, std::min(places.chunk_rows, count - first), from + first * host_stride, host_stride);
    }
    return check(cudaStreamSynchronize(stream), "a copy to the device");
  }
  in_chunks(workspace, places.chunk_rows, bytes, count,
            [&](auto next, const Pinned *buffers, const std::unique_ptr<Event> *events) {
              size_t first, rows;
              for (int turn = 0; next(&first, &rows); turn ^= 1) {
                refuse_stopped(stop);
                check(cudaEventSynchronize(events[turn]->handle), "a copy to the device");
                copy_rows(buffers[turn].at(), bytes, from + first * host_stride, host_stride, bytes, rows);
                copy(first, rows, buffers[turn].at(), bytes);
                check(cudaEventRecord(events[turn]->handle, stream), "a copy to the device");
              }
            });
}

void copy_in(Workspace &workspace, cudaStream_t stream, const To &to, const From &from, const Extent &extent,
             shoal_stop stop) {
  const Places places{chunk_rows_of(extent.bytes, extent.count), to.apart,
                      [to](size_t first, size_t) { return static_cast<char *>(to.at) + first * to.apart; },
                      [](size_t, size_t) {}};
  if (extent.count > 0) copy_in_chunks(workspace, stream, places, from, extent, stop);
}

void copy_out(Workspace &workspace, cudaStream_t stream, const To &host, const From &device, const Extent &extent,
              shoal_stop stop) {
  char *const to = static_cast<char *>(host.at);
  const char *const from = static_cast<const char *>(device.at);
  const size_t host_stride = host.apart, device_stride = device.apart, bytes = extent.bytes, count = extent.count;
  if (count == 0) return;
  if (is_pinned(to)) {
    check(cudaMemcpy2DAsync(to, host_stride, from, device_stride, bytes, count, cudaMemcpyDeviceToHost, stream),
          "a copy from the device");
    return check(cudaStreamSynchronize(stream), "a copy from the device");
  }
  in_chunks(workspace, chunk_rows_of(bytes, count), bytes, count,
            [&](auto next, const Pinned *buffers, const std::unique_ptr<Event> *events) {
              size_t first[2], rows[2];
              const auto ask = [&](int turn) {
                if (!next(&first[turn], &rows[turn])) return false;
                refuse_stopped(stop);
                check(cudaEventSynchronize(events[turn]->handle), "a copy from the device");
                const char *const source = from + first[turn] * device_stride;
                if (device_stride == bytes)
                  check(cudaMemcpyAsync(buffers[turn].at(), source, bytes * rows[turn], cudaMemcpyDeviceToHost, stream),
                        "a copy from the device");
                else
                  check(cudaMemcpy2DAsync(buffers[turn].at(), bytes, source, device_stride, bytes, rows[turn],
                                          cudaMemcpyDeviceToHost, stream),
                        "a copy from the device");
                check(cudaEventRecord(events[turn]->handle, stream), "a copy from the device");
                return true;
              };
              bool is_asked = ask(0);
              for (int turn = 0; is_asked; turn ^= 1) {
                is_asked = ask(turn ^ 1); // the next one is on its way while this one is put in place
                check(cudaEventSynchronize(events[turn]->handle), "a copy from the device");
                copy_rows(to + first[turn] * host_stride, host_stride, buffers[turn].at(), bytes, bytes, rows[turn]);
              }
            });
}

} // namespace shoal_cuda
