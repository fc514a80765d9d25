// For tests: embeds numbered lines as the test does, in a process that dies at a fault point.

import { faultPointsFrom } from '@shoal/core/base';
import { ShoalClient } from '../shoal-client.ts';

const { rows, runId, fault, ...options } = JSON.parse(process.env['KILLED_CLIENT'] ?? '{}');
const client = await ShoalClient.connect({
  ...options,
  faults: faultPointsFrom(fault, (signal) => process.kill(process.pid, signal)),
});

function* lines(): Generator<{ text: string }> {
  for (let n = 0; n < rows; n++) yield { text: `line ${n} ${'x'.repeat(n % 7)}` };
}

for await (const { first } of client.embedStream(lines(), { runId })) process.send?.(first);
await client.close();
