// The fleet page: what needs somebody, figures of the whole, queues with their lanes, a card a worker. Made of parts that
// are told anew to pages that are open, each by the name under which the page has it.

import type { WorkerHistory } from '@shoal/queue';
import type { Visitor } from '../access/visitor.ts';
import { noticesOf, type Notice } from '../fleet/notices.ts';
import { waitingIn, type FleetReading, type QueueReading } from '../fleet/fleet-reading.ts';
import { payloadsOf } from '../fleet/payloads.ts';
import { tenMinutesOf } from '../fleet/ten-minutes.ts';
import { cellTable } from './cell-table.ts';
import { lineChart } from './charts.ts';
import { html, type Child, type Html } from './html.ts';
import { page } from './layout.ts';
import { payloadTable } from './payload-table.ts';
import { queueTable } from './queue-table.ts';
import { amountText, counted, shareText, spanText, timeText } from './words.ts';
import { tenantTable } from './tenant-table.ts';
import { goneCard, startingCard, workerCard } from './worker-card.ts';

export const PARTS = ['notices', 'figures', 'cells', 'queues', 'payloads', 'workers', 'tenants'] as const;
export type Part = (typeof PARTS)[number];

/** Each part as markup, for who may see it. */
export function fleetParts(reading: FleetReading, { role }: Pick<Visitor, 'role'>): Readonly<Record<Part, Html>> {
  const isOperator = role === 'operator';
  return {
    notices: noticesPart(reading),
    figures: figuresPart(reading),
    cells: cellTable(reading.cells),
    queues: queueTable(reading, isOperator),
    payloads: payloadTable(payloadsOf(reading.queues, reading.payloadsHere), reading.atMs),
    workers: workersPart(reading, isOperator),
    tenants: tenantTable(reading),
  };
}

export function fleetPage(reading: FleetReading, visitor: Visitor): string {
  const parts = fleetParts(reading, visitor);
  return page({
    title: 'Fleet',
    visitor,
    here: 'fleet',
    body: html`<div class="top">
        <h1>Fleet</h1>
        <p id="live" role="status">as of ${timeText(reading.atMs)}</p>
      </div>
      <section aria-label="What needs somebody">
        <ul class="notices" data-part="notices">
          ${parts.notices}
        </ul>
      </section>
      <section aria-label="All together">
        <ul class="figures" data-part="figures">
          ${parts.figures}
        </ul>
      </section>
      ${
        reading.cells !== undefined &&
        html`<section aria-labelledby="cells-title">
          <h2 id="cells-title">Cells</h2>
          <div class="scroll" data-part="cells" role="region" aria-label="Table of cells" tabindex="0">
            ${parts.cells}
          </div>
        </section>`
      }
      <section aria-labelledby="queues-title">
        <h2 id="queues-title">Queues</h2>
        <div class="scroll" data-part="queues" role="region" aria-label="Table of queues" tabindex="0">
          ${parts.queues}
        </div>
      </section>
      ${
        parts.payloads.text !== '' &&
        html`<section aria-labelledby="payloads-title">
          <h2 id="payloads-title">Payload servers</h2>
          <div class="scroll" data-part="payloads" role="region" aria-label="Table of payload servers" tabindex="0">
            ${parts.payloads}
          </div>
        </section>`
      }
      <section aria-labelledby="workers-title">
        <h2 id="workers-title">Workers</h2>
        <div class="cards" data-part="workers">${parts.workers}</div>
      </section>
      <section aria-labelledby="tenants-title">
        <h2 id="tenants-title">Tenants</h2>
        <div class="scroll" data-part="tenants" role="region" aria-label="Table of tenants" tabindex="0">
          ${parts.tenants}
        </div>
      </section>`,
  });
}

function noticesPart(reading: FleetReading): Html {
  const notices = noticesOf(reading);
  if (notices.length > 0) return html`${notices.map(noticeItem)}`;
  const workers = reading.queues.reduce((sum, queue) => sum + queue.workers.length, 0);
  const all = workers === 0 ? 'No worker is there, and no job waits' : 'Nothing needs anybody';
  return html`<li class="notice fine">
    ${all}: ${counted(workers, 'worker', 'workers')}, ${counted(reading.queues.length, 'queue', 'queues')}.
  </li>`;
}

function noticeItem({ isSerious, text, command, runbook, link }: Notice): Html {
  return html`<li class="notice ${isSerious && 'serious'}">
    <strong>${isSerious ? 'Act' : 'Look'}:</strong> ${text}. ${command !== undefined && html`<code>${command}</code>`}
    ${link !== undefined && html`<a href="${link.href}">${link.text}</a>`}
    ${runbook !== undefined && html`<span class="soft">docs/runbooks/${runbook}.md</span>`}
  </li>`;
}

function figuresPart({ queues, histories, atMs }: FleetReading): Html {
  const all = tenMinutesOf([...histories.values()], atMs);
  const lanes = queues.flatMap((queue) => queue.lanes);
  const sum = (of: (lane: (typeof lanes)[number]) => number): number =>
    lanes.reduce((total, lane) => total + of(lane), 0);
  const oldestMs = Math.max(
    0,
    ...lanes.flatMap((lane) => [lane.oldestWaitingMs.interactive, lane.oldestWaitingMs.bulk]),
  );
  const workers = queues.flatMap((queue) => queue.workers);
  const ready = workers.filter(({ state }) => state === 'ready').length;
  const rate = all.textsPerSecond.at(-1) ?? all.textsPerSecond.at(-2) ?? 0;
  const busy = all.busy.at(-1) ?? all.busy.at(-2);
  return html`<li>
      <b>${amountText(rate)}</b> texts/s
      ${lineChart({ label: 'Texts a second of all workers', points: all.textsPerSecond, say: amountText })}
    </li>
    <li>
      <b>${busy === undefined ? '–' : shareText(busy)}</b> of the devices busy
      ${lineChart({ label: 'Busy share of all devices', points: all.busy, most: 1, say: shareText })}
    </li>
    <li>
      <b>${sum(waitingIn).toLocaleString('en')}</b> jobs wait, ${sum(({ jobs }) => jobs.active).toLocaleString('en')}
      run
    </li>
    <li><b>${spanText(oldestMs)}</b> the oldest waits</li>
    <li><b>${ready} of ${workers.length}</b> workers claim</li>
    <li><b>${queues.reduce((total, { quarantined }) => total + quarantined, 0)}</b> jobs in quarantine</li>`;
}

function workersPart(reading: FleetReading, isOperator: boolean): Html {
  const cards = reading.queues.flatMap((queue: QueueReading) =>
    queue.workers.map((worker) => {
      const history: WorkerHistory | undefined = reading.histories.get(worker.workerId);
      return workerCard({ queue: queue.queue, worker, history, atMs: reading.atMs, isOperator });
    }),
  );
  const starting = reading.queues.flatMap(({ queue, starting: all }) =>
    all.map((worker) => startingCard(queue, worker, reading.atMs)),
  );
  const gone = reading.gone.map((history) => goneCard(history, reading.atMs));
  if (cards.length + starting.length + gone.length === 0)
    return html`<p class="soft">
        No worker is alive. Start one with <code>shoal worker</code> or <code>shoal up</code>.
      </p>
      ${leftOf(reading)}`;
  return html`${gone}${starting}${cards}${leftOf(reading)}`;
}

/** Nothing is wrong with leaving in order, and it may be what somebody looks for. */
function leftOf({ left, atMs }: FleetReading): Child {
  if (left.length === 0) return undefined;
  const named = left.map(({ workerId, steps }) => `${workerId} ${spanText(atMs - (steps.at(-1)?.atMs ?? atMs))} ago`);
  return html`<p class="soft">
    Left in order in the last ten minutes, and nobody of the same name is back: ${named.join(', ')}.
  </p>`;
}
