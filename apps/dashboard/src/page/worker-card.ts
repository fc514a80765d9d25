// One worker: its state and why, what it is and where, its memory, its last ten minutes, its last micro-batches, and what
// went wrong. Everything that it does not tell is left out.

import type { HistoryStep, RanBatch, WorkerFacts } from '@shoal/core';
import type { LiveWorker, StartingWorker, WorkerHistory } from '@shoal/queue';
import { eventsOf, tenMinutesOf } from '../fleet/ten-minutes.ts';
import { lineChart, memoryBar, type Share } from './charts.ts';
import { html, type Child, type Html } from './html.ts';
import { amountText, bytesText, counted, shareText, spanText } from './words.ts';

export interface WorkerCardParts {
  readonly queue: string;
  readonly worker: LiveWorker;
  readonly history: WorkerHistory | undefined;
  readonly atMs: number;
  readonly isOperator: boolean;
}

const LOOKS: Readonly<Record<string, 'good' | 'warn' | 'bad'>> = { ready: 'good', braked: 'bad' };
const MOST_EVENTS = 6;
const MOST_BATCHES = 20;

export function workerCard({ queue, worker, history, atMs, isOperator }: WorkerCardParts): Html {
  const { workerId, facts, state, reason, isDrained, lanes } = worker;
  return html`<article class="card" id="worker-${workerId}" aria-labelledby="name-${workerId}">
    <div class="top">
      <h3 id="name-${workerId}">${workerId}</h3>
      <span class="state ${LOOKS[state] ?? 'warn'}">${state}</span>
    </div>
    <p class="soft">
      ${reason.slice(0, 1).toUpperCase()}${reason.slice(1)}${facts?.standing !== undefined && html`, for ${spanText(atMs - facts.standing.sinceMs)}`}.
      ${queue}, ${lanes.join(' and ')} lane.
    </p>
    ${facts === undefined ? html`<p class="soft">It tells nothing of itself yet.</p>` : html`${memoryOf(facts)}${factsList(facts, atMs)}`}
    ${lines(history, atMs)} ${batches(history)} ${events(history)} ${isOperator && actionOf(queue, workerId, isDrained)}
  </article>`;
}

/** One that is being started and serves nobody yet. */
export function startingCard(
  queue: string,
  { workerId, device, host, version, startedMs }: StartingWorker,
  atMs: number,
): Html {
  return html`<article class="card" id="worker-${workerId}" aria-labelledby="name-${workerId}">
    <div class="top">
      <h3 id="name-${workerId}">${workerId}</h3>
      <span class="state warn">starting</span>
    </div>
    <p class="soft">
      It opens its model and serves nobody yet${startedMs !== undefined && html`, for ${spanText(atMs - startedMs)}`}.
      ${device ?? 'A device'} on ${host ?? 'a machine'}${version !== undefined && html`, Shoal ${version}`}, for
      ${queue}.
    </p>
  </article>`;
}

/** One that died without a word in the last ten minutes. */
export function goneCard(history: WorkerHistory, atMs: number): Html {
  const { workerId, owner } = history;
  return html`<article class="card" id="worker-${workerId}" aria-labelledby="name-${workerId}">
    <div class="top">
      <h3 id="name-${workerId}">${workerId}</h3>
      <span class="state bad">dead</span>
    </div>
    <p class="soft">
      It died without a word, last heard of ${spanText(atMs - (history.steps.at(-1)?.atMs ?? atMs))} ago.
      ${owner !== undefined && html`${owner.device} on ${owner.host}, of ${owner.queue}.`} What it had claimed goes to
      others when its lease runs out.
    </p>
    ${lines(history, atMs)} ${batches(history)} ${events(history)}
  </article>`;
}

function actionOf(queue: string, workerId: string, isDrained: boolean): Html {
  const at = `queue=${encodeURIComponent(queue)}&worker=${encodeURIComponent(workerId)}`;
  return isDrained
    ? html`<p><a class="button small" href="/act/claim?${at}">Let it claim again</a></p>`
    : html`<p><a class="button small" href="/act/drain?${at}">Drain it</a></p>`;
}

function helpedText(cell: string, jobs: number, held: number): string {
  return `the cell ${cell} with ${counted(jobs, 'job', 'jobs')}${held === 0 ? '' : `, has ${amountText(held)} of them now`}`;
}

function factsList(facts: WorkerFacts, atMs: number): Html {
  const { device, precision, model, host, pid, version, startedMs, claims, poolTokens, budget, card, metricsUrl } =
    facts;
  const { helped = [] } = facts;
  const rows: readonly (readonly [string, Child])[] = [
    ['Device', `${device}, ${precision}`],
    ['Card', cardText(card)],
    ['Model', model],
    ['Where', `${host}, process ${pid}${version === undefined ? '' : `, Shoal ${version}`}`],
    ['Up for', startedMs === undefined ? undefined : spanText(atMs - startedMs)],
    ['Has claimed', `${counted(claims, 'job', 'jobs')}, ${amountText(poolTokens)} tokens wait in its pool`],
    ...helped.map(({ cell, jobs, held }) => ['Helped', helpedText(cell, jobs, held)] as const),
    [
      'Budget',
      budget === undefined
        ? undefined
        : `${amountText(budget.maxPaddedTokens)} tokens a run, by ${budget.limitedBy} (${budget.source})`,
    ],
    ['Payload servers', payloadsText(facts)],
    ['Bodies', bodiesText(facts.bodies)],
    ['Metrics', metricsLink(metricsUrl)],
  ];
  return html`<dl>
    ${rows.flatMap(([term, told]) =>
      told === undefined
        ? []
        : [
            html`<dt>${term}</dt>
              <dd>${told}</dd>`,
          ],
    )}
  </dl>`;
}

const MOST_PAYLOAD_SERVERS = 4;

/** "10.0.0.5:6379, s3://bucket/x"; of many their number, for a table has them all. */
function payloadsText({ payloads, payloadServers }: WorkerFacts): string | undefined {
  if (payloads === undefined) return undefined;
  if (payloadServers === undefined) return 'not told which';
  return payloadServers.length > MOST_PAYLOAD_SERVERS
    ? `${payloadServers.length}, see above`
    : payloadServers.map(({ name }) => name).join(', ');
}

/** Since it started. */
function bodiesText(bodies: WorkerFacts['bodies']): string | undefined {
  if (bodies === undefined) return undefined;
  const { put, byQueueServer, lost } = bodies;
  return (
    `${counted(put, 'result', 'results')} put there, ${amountText(byQueueServer)} by the queue server, ` +
    `${counted(lost, 'input', 'inputs')} lost there`
  );
}

/** What a worker tells is written by whoever may write to the queue server: an address of another kind is no link. */
function metricsLink(url: string | undefined): Child {
  if (url === undefined) return undefined;
  return /^https?:\/\//.test(url) ? html`<a href="${url}/metrics">${url}</a>` : url;
}

/** "NVIDIA H200, 87 % used, 61 °C, 512 W, GPU-1234" */
function cardText(card: WorkerFacts['card']): string | undefined {
  if (card === undefined) return undefined;
  const { name, uuid, utilization, temperatureCelsius, powerWatts } = card;
  const told = [
    name,
    utilization === undefined ? undefined : `${shareText(utilization)} used`,
    temperatureCelsius === undefined ? undefined : `${temperatureCelsius} °C`,
    powerWatts === undefined ? undefined : `${Math.round(powerWatts)} W`,
    uuid,
  ].filter((text) => text !== undefined);
  return told.length === 0 ? undefined : told.join(', ');
}

/** Who holds what of the device's memory, as far as the worker knows. */
function memoryOf({ budget, memoryBytes, similarity }: WorkerFacts): Child {
  const ledger = similarity?.gpu ?? similarity?.host;
  const residents = ledger?.bytes ?? 0;
  if (budget?.device === undefined) {
    if (ledger !== undefined)
      return memoryBar(ledger.budgetBytes, [
        { kind: 'residents', bytes: residents },
        { kind: 'free', bytes: Math.max(0, ledger.budgetBytes - residents) },
      ]);
    return memoryBytes === undefined
      ? undefined
      : html`<p class="soft">It holds ${bytesText(memoryBytes)} of memory.</p>`;
  }
  const { totalBytes, othersBytes, loadedBytes } = budget.device;
  const own = Math.min(Math.max(memoryBytes ?? 0, loadedBytes, residents), totalBytes);
  const model = Math.min(loadedBytes, own - residents);
  const others = Math.min(othersBytes, totalBytes - own);
  const shares: readonly Share[] = [
    { kind: 'model', bytes: model },
    { kind: 'residents', bytes: residents },
    { kind: 'peak', bytes: own - residents - model },
    { kind: 'others', bytes: others },
    { kind: 'free', bytes: totalBytes - own - others },
  ];
  return html`<div>${memoryBar(totalBytes, shares)}</div>`;
}

function figure(
  label: string,
  points: readonly (number | undefined)[],
  say: (value: number) => string,
  most?: number,
): Html {
  const now = points.findLast((point) => point !== undefined);
  return html`<figure>
    <figcaption>${label} <b>${now === undefined ? '–' : say(now)}</b></figcaption>
    ${lineChart({ label, points, say, ...(most === undefined ? {} : { most }) })}
  </figure>`;
}

function lines(history: WorkerHistory | undefined, atMs: number): Child {
  if (history === undefined) return html`<p class="soft">Its first ten seconds are not told yet.</p>`;
  const { textsPerSecond, padding, busy } = tenMinutesOf([history], atMs);
  return html`<div class="lines">
    ${figure('Texts a second', textsPerSecond, amountText)} ${figure('Padding', padding, shareText, 1)}
    ${figure('Busy', busy, shareText, 1)}
  </div>`;
}

function batches(history: WorkerHistory | undefined): Child {
  const steps = history?.steps ?? [];
  const last = steps
    .flatMap((step) => step.batches)
    .slice(-MOST_BATCHES)
    .toReversed();
  if (last.length === 0) return undefined;
  const slow = steps.flatMap(({ slowest }) => slowest ?? []).toSorted((a, b) => b.batch[3] - a.batch[3])[0];
  return html`<details id="runs-${history?.workerId}">
    <summary>Last micro-batches</summary>
    ${slow !== undefined && slowestOf(slow)}
    <table>
      <thead>
        <tr>
          <th scope="col" class="n">Rows</th>
          <th scope="col" class="n">Width</th>
          <th scope="col" class="n">Padding</th>
          <th scope="col" class="n">ms</th>
        </tr>
      </thead>
      <tbody>
        ${last.map(batchRow)}
      </tbody>
    </table>
  </details>`;
}

function slowestOf({ batch: [rows, width, , runMs], jobs, jobIds }: NonNullable<HistoryStep['slowest']>): Html {
  const more = jobs - jobIds.length;
  return html`<p class="soft">
    The slowest of ten minutes: ${rows} × ${width} in ${runMs}
    ms${
      jobs > 0 &&
      html`, of ${counted(jobs, 'job', 'jobs')}:
      ${jobIds.map((jobId) => html`<a href="/search?q=${encodeURIComponent(jobId)}">${jobId}</a> `)}${more > 0 && `and ${more} more`}`
    }
  </p>`;
}

function batchRow([rows, width, tokens, runMs]: RanBatch): Html {
  const padding = rows * width === 0 ? 0 : 1 - tokens / (rows * width);
  return html`<tr>
    <td class="n">${rows}</td>
    <td class="n">${width}</td>
    <td class="n">${shareText(padding)}</td>
    <td class="n">${runMs}</td>
  </tr>`;
}

function events(history: WorkerHistory | undefined): Child {
  const all = eventsOf(history);
  if (all.length === 0) return undefined;
  return html`<div>
    <strong class="soft">In ten minutes</strong>
    <ul class="plain">
      ${all.slice(0, MOST_EVENTS).map(({ event, count }) => html`<li><b>${count.toLocaleString('en')} ×</b> ${eventText(event)}</li>`)}
      ${all.length > MOST_EVENTS && html`<li class="soft">and ${all.length - MOST_EVENTS} other kinds</li>`}
    </ul>
  </div>`;
}

const EVENT_WORDS: Readonly<Record<string, string>> = {
  failed: 'job failed',
  quarantined: 'job quarantined',
  'handed-over': 'job handed over',
  split: 'micro-batch split',
  lost: 'executor lost',
  recycled: 'executor recycled',
};

/** "executor lost: killed by SIGKILL" of "lost killed by SIGKILL" */
function eventText(event: string): string {
  const [name = '', ...reason] = event.split(' ');
  return `${EVENT_WORDS[name] ?? name}${reason.length === 0 ? '' : `: ${reason.join(' ')}`}`;
}
