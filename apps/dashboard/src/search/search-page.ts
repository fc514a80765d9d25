// What a search found: of one job everything that there is, with why it is there; of a beginning a table.

import type { JobAnswer } from '@shoal/queue';
import type { Visitor } from '../access/visitor.ts';
import { html, type Html } from '../page/html.ts';
import { page } from '../page/layout.ts';
import { bytesText, counted, spanText } from '../page/words.ts';
import type { FirstText } from './first-text.ts';
import type { Search } from './search.ts';

/** `texts`: beginnings of first texts, by lane, for who may see them. */
export function searchPage(
  search: Search,
  visitor: Visitor,
  texts: ReadonlyMap<string, FirstText> = new Map(),
): string {
  const { asked, answer, jobs } = search;
  return page({
    title: `Search: ${asked}`,
    visitor,
    searched: asked,
    body: html`<h1>${asked}</h1>
      ${
        answer !== undefined
          ? answerOf(answer, visitor, texts)
          : jobs.length === 0
            ? nothing(search)
            : tableOf(search, visitor)
      }`,
  });
}

function nothing({ isAll }: Search): Html {
  return html`<p class="notice">
    No queue has a job whose id begins so${!isAll && ' among the first 10,000 of each state'}. Jobs that ended are kept
    for a while only (<code>keepFinishedMs</code>, <code>keepCompletedJobs</code>).
  </p>`;
}

function answerOf({ jobId, why, found }: JobAnswer, visitor: Visitor, texts: ReadonlyMap<string, FirstText>): Html {
  return html`<p class="notice">${upperFirst(why)}.</p>
    ${
      found.length === 0
        ? html`<p><a href="/search?q=${encodeURIComponent(`${jobId}*`)}">Look for ids that begin so</a></p>`
        : html`<div class="cards">
            ${found.map((seen) => sightingCard(seen, visitor, texts.get(laneOf(seen)), found.length > 1))}
          </div>`
    }`;
}

/** Where the record is, by the name of its queue. */
export function laneOf({ queue, lane }: JobAnswer['found'][number]): string {
  return lane === 'main' ? queue : `${queue}-${lane}`;
}

function sightingCard(
  seen: JobAnswer['found'][number],
  { role }: Visitor,
  text: FirstText | undefined,
  isOneOfMany: boolean,
): Html {
  const { jobId, state, why, tenant, class: kind, rows, position, ageMs, lease, failure, inputBytes, result } = seen;
  const name = laneOf(seen);
  const told: readonly (readonly [string, string | undefined])[] = [
    ['Kind', seen.kind],
    ['Tenant', tenant],
    ['Size', rows === undefined || rows === 0 ? undefined : `${counted(rows, 'row', 'rows')}, ${kind}`],
    ['First text', text === undefined ? undefined : 'text' in text ? text.text : `not to be told: ${text.problem}`],
    ['Added', ageMs === undefined ? undefined : `${spanText(ageMs)} ago`],
    [
      'In line',
      position === undefined
        ? undefined
        : `${position.ahead.toLocaleString('en')} before it, of ${position.of.toLocaleString('en')}`,
    ],
    ['Taken', `${counted(seen.claims, 'time', 'times')}, its worker was lost ${counted(seen.stalls, 'time', 'times')}`],
    ['Lease', lease === undefined ? undefined : `of ${lease.holder}, for ${spanText(lease.leftMs)} unless renewed`],
    ['Failure', failure === undefined ? undefined : `${failure.code}: ${failure.message}`],
    ['Input', inputBytes === undefined ? (seen.needsInput ? 'gone' : undefined) : bytesText(inputBytes)],
    [
      'Result',
      result === undefined ? undefined : `${bytesText(result.bytes)}, ${result.isTaken ? 'taken' : 'not acknowledged'}`,
    ],
  ];
  const hasRecord = state !== 'result-only' && state !== 'input-only';
  return html`<article class="card">
    <div class="top">
      <h2>
        ${
          hasRecord
            ? html`<a href="/queues/queue/${encodeURIComponent(name)}/${encodeURIComponent(jobId)}">${name}</a>`
            : name
        }
      </h2>
      <span class="state ${LOOKS[state] ?? 'warn'}">${state.replaceAll('-', ' ')}</span>
    </div>
    ${isOneOfMany && html`<p class="soft">${upperFirst(why)}.</p>`}
    <dl>
      ${told.flatMap(([term, words]) =>
        words === undefined
          ? []
          : [
              html`<dt>${term}</dt>
                <dd>${words}</dd>`,
            ],
      )}
    </dl>
    ${role === 'operator' && hasRecord && actionsOf(jobId, name, state)}
  </article>`;
}

const LOOKS: Readonly<Record<string, 'good' | 'bad'>> = {
  completed: 'good',
  running: 'good',
  failed: 'bad',
  quarantined: 'bad',
  lost: 'bad',
};

function upperFirst(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

function tableOf({ jobs, isAll }: Search, { role }: Visitor): Html {
  return html`<div class="scroll" role="region" aria-label="Jobs found" tabindex="0">
    <table>
      <caption>
        ${counted(jobs.length, 'job', 'jobs')}${!isAll && '; there may be more'}
      </caption>
      <thead>
        <tr>
          <th scope="col">Job</th>
          <th scope="col">Lane</th>
          <th scope="col">State</th>
          ${role === 'operator' && html`<th scope="col">Do</th>`}
        </tr>
      </thead>
      <tbody>
        ${jobs.map(
          ({ jobId, queue, state }) =>
            html`<tr>
              <th scope="row">
                <a href="/search?q=${encodeURIComponent(jobId)}">${jobId}</a>
              </th>
              <td>${queue}</td>
              <td>${state}</td>
              ${role === 'operator' && html`<td>${actionsOf(jobId, queue, state)}</td>`}
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

function actionsOf(jobId: string, lane: string, state: string): Html {
  const main = lane.replace(/-(cpu|quarantine)$/, '');
  const at = `queue=${encodeURIComponent(main)}&id=${encodeURIComponent(jobId)}`;
  const names = lane.endsWith('-quarantine')
    ? [['return', 'Return'] as const, ['drop', 'Drop'] as const]
    : state === 'failed'
      ? [['retry', 'Retry'] as const]
      : state === 'completed'
        ? []
        : [['cancel', 'Cancel'] as const];
  return html`<div class="row">
    ${names.map(([name, text]) => html`<a class="button small" href="/act/${name}?${at}">${text}</a>`)}
  </div>`;
}
