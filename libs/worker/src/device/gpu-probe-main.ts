// Exits with 0 when the first GPU that this process sees uploads a few rows and finds among them what the CPU finds.
// One argument: the CUDA library, where it is not in its usual place.

import { CudaEngine, cpuEngine, matrixOf, openCuda, rowsOf } from '@shoal/similarity';

const DIMS = 32;
process.once('disconnect', () => process.exit(1)); // whoever asked is gone
const found = openCuda(process.argv[2]);
process.exit(
  found.ok &&
    (await agrees(new CudaEngine({ cuda: found.cuda, device: 0, residentBytes: 1 << 26, workBytes: 1 << 26 })))
    ? 0
    : 1,
);

async function agrees(gpu: CudaEngine): Promise<boolean> {
  const rows = rowsOf(
    matrixOf(
      Float32Array.from({ length: 1_000 * DIMS }, (_, i) => Math.sin(i)),
      DIMS,
    ),
  );
  const query = matrixOf(
    Float32Array.from({ length: DIMS }, (_, i) => Math.cos(i)),
    DIMS,
  );
  gpu.keep(rows);
  try {
    const [there, here] = await Promise.all([
      gpu.topK(query, rows, 'dot', 10),
      cpuEngine().topK(query, rows, 'dot', 10),
    ]);
    return there.rows.join() === here.rows.join();
  } catch {
    return false;
  }
}
