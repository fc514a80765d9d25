// The payload servers as a table, a row each. Empty where there are none.

import type { PayloadServerSeen } from '@shoal/queue';
import type { PayloadsReading } from '../fleet/payloads.ts';
import { html, type Child, type Html } from './html.ts';
import { bytesText, shareText, spanText } from './words.ts';

export function payloadTable(reading: PayloadsReading | undefined, atMs: number): Html {
  if (reading === undefined) return html``;
  const { servers, workers } = reading;
  return html`<table>
    <caption>
      Large inputs and results go by these; what one does not take goes to the others, or by the queue server.
    </caption>
    <thead>
      <tr>
        <th scope="col">Payload server</th>
        <th scope="col">As workers see it</th>
        <th scope="col">From here</th>
        <th scope="col" class="n">Workers</th>
        <th scope="col" class="n">Used</th>
        <th scope="col" class="n">Limit</th>
        <th scope="col">Kind</th>
      </tr>
    </thead>
    <tbody>
      ${
        servers.length === 0
          ? html`<tr>
              <td colspan="7">Workers have some, and do not tell which yet.</td>
            </tr>`
          : servers.map((server) => rowOf(server, workers, atMs))
      }
    </tbody>
  </table>`;
}

function rowOf(server: PayloadServerSeen, workers: number, atMs: number): Html {
  const { name, kind, here, memory, workers: own } = server;
  return html`<tr id="payload-${name}">
    <th scope="row" class="long">${name}</th>
    <td>${asWorkersSee(server, atMs)}</td>
    <td>${fromHere(here)}</td>
    <td class="n">${own.length} of ${workers}</td>
    <td class="n">
      ${memory === undefined ? '–' : bytesText(memory.usedBytes)}${memory !== undefined && memory.maxBytes > 0 && html` (${shareText(memory.usedBytes / memory.maxBytes)})`}
    </td>
    <td class="n">${memory === undefined ? '–' : memory.maxBytes === 0 ? 'none' : bytesText(memory.maxBytes)}</td>
    <td>${kind}</td>
  </tr>`;
}

function asWorkersSee({ workers, failing }: PayloadServerSeen, atMs: number): Child {
  if (workers.length === 0) return html`<span class="state warn">no worker has it</span>`;
  const [first] = failing;
  if (first === undefined) return html`<span class="state good">answers</span>`;
  const isAll = failing.length === workers.length;
  const sinceMs = Math.min(...failing.map((one) => one.sinceMs ?? atMs));
  return html`<span class="state ${isAll ? 'bad' : 'warn'}"
      >${isAll ? 'fails' : `fails with ${failing.length} of ${workers.length}`}</span
    >
    <span class="soft">for ${spanText(Math.max(0, atMs - sinceMs))}</span>`;
}

function fromHere(here: PayloadServerSeen['here']): Child {
  if (here === undefined) return html`<span class="soft">not in the settings here</span>`;
  const where = here.where !== undefined && html` <span class="soft">${here.where}</span>`;
  return here.problem === undefined
    ? html`<span class="state good">answers</span>${where}`
    : html`<span class="state warn">fails</span>${where}`;
}
