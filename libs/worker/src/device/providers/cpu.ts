// The CPU by ONNX Runtime: always there, in fp32 or as an int8 model computes.

import { stat } from 'node:fs/promises';
import { OrtBackend } from '@shoal/inference';
import { openGraph } from '@shoal/models';
import { cpuSessions, threadsEach } from '../cpu-sessions.ts';
import type { OpenProvider } from '../device-options.ts';
import { hostMemory } from '../host-memory.ts';

export const openCpu: OpenProvider = async ({ model, slots, threads, sessions: asked, cacheDir, log }) => {
  const graphPath = await openGraph(model, { cacheDir, log });
  const sessions =
    asked ??
    cpuSessions({
      threads,
      graphBytes: (await stat(graphPath)).size,
      memoryBytes: (await hostMemory().read())?.totalBytes ?? 0,
    });
  return OrtBackend.open({
    ...slots,
    sessions,
    threads: threadsEach(threads, sessions),
    precision: model.precision,
    graphPath,
  });
};
