// What a search found, as a table.

import type { Visitor } from '../access/visitor.ts';
import { html, type Html } from '../page/html.ts';
import { page } from '../page/layout.ts';
import { counted } from '../page/words.ts';
import type { Search } from './search.ts';

export function searchPage(search: Search, visitor: Visitor): string {
  const { asked, jobs } = search;
  return page({
    title: `Search: ${asked}`,
    visitor,
    searched: asked,
    body: html`<h1>${asked}</h1>
      ${jobs.length === 0 ? nothing(search) : tableOf(search, visitor)}`,
  });
}

function nothing({ asked, isAll }: Search): Html {
  return html`<p class="notice">
    No queue has such a job${!isAll && ' among the first 10,000 of each state'}. Jobs that ended are kept for a while
    only (<code>keepFinishedMs</code>, <code>keepCompletedJobs</code>).
    ${
      !asked.endsWith('*') &&
      html`<a href="/search?q=${encodeURIComponent(`${asked}*`)}">Look for ids that begin so</a>`
    }
  </p>`;
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
                <a href="/queues/queue/${encodeURIComponent(queue)}/${encodeURIComponent(jobId)}">${jobId}</a>
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
