// For tests: submits texts and ends without a word to the queue, or fetches by an id alone what another process
// submitted.

import { ShoalClient } from '../shoal-client.ts';

const { options, id, texts } = JSON.parse(process.env['SUBMIT_AND_END'] ?? '{}');
const client = await ShoalClient.connect(options);
if (texts !== undefined) {
  const handle = await client.submit(texts, { jobId: id });
  process.stdout.write(`${(await handle.status()).state}\n`, () => process.exit());
} else {
  const { vectors } = await client.job(id).result();
  process.stdout.write(JSON.stringify([...vectors]));
  await client.close();
}
