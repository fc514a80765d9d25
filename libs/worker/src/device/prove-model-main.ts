// The process behind prove-model.ts: opens a graph on the CPU, runs one row, says what came, and waits to be killed.

import { once } from 'node:events';
import { invariant, toFailure } from '@shoal/contract';
import { OrtBackend } from '@shoal/inference';
import { fillRows, widthOf } from './run-rows.ts';
import type { FromProof, ToProof } from './prove-model.ts';

const send = (message: FromProof): void => void process.send?.(message);

process.on('disconnect', () => process.kill(process.pid, 'SIGKILL'));

try {
  const [{ graphPath, dims, precision, ids, second }] = (await once(process, 'message')) as [ToProof];
  const row = { ids, second };
  const width = widthOf([row]);
  const backend = await OrtBackend.open({ graphPath, dims, precision, threads: 1, slotRows: 1, slotTokens: width });
  const slot = backend.lend();
  invariant(slot !== undefined, 'a slot is free while nothing runs');
  fillRows(slot, [row], width);
  const result = await backend.run(slot, { rows: 1, width });
  if (result.ok) send({ kind: 'vector', values: [...slot.embeddings.subarray(0, dims)] });
  else send({ kind: 'failed', message: result.outOfVram.message });
} catch (error) {
  send({ kind: 'failed', message: toFailure(error).message });
}
