// What lies in quarantine, queue by queue, with why, and what an operator may do with each.

import type { QuarantinedJob } from '@shoal/queue';
import type { Visitor } from '../access/visitor.ts';
import { html, type Html } from './html.ts';
import { page } from './layout.ts';
import { bytesText, counted, timeText } from './words.ts';

export interface QuarantineOf {
  readonly queue: string;
  readonly jobs: readonly QuarantinedJob[];
}

export function quarantinePage(all: readonly QuarantineOf[], visitor: Visitor): string {
  const filled = all.filter(({ jobs }) => jobs.length > 0);
  return page({
    title: 'Quarantine',
    visitor,
    here: 'quarantine',
    body: html`<h1>Quarantine</h1>
      <p class="soft">
        Jobs that killed their executor, or seemed to. Nobody claims them, and no worker is needed for these queues: a
        person looks at each, and returns it or drops it.
      </p>
      ${filled.length === 0 ? html`<p class="notice fine">Nothing is in quarantine.</p>` : filled.map((one) => sectionOf(one, visitor))}`,
  });
}

function sectionOf({ queue, jobs }: QuarantineOf, { role }: Visitor): Html {
  const at = encodeURIComponent(queue);
  const isOperator = role === 'operator';
  return html`<section aria-labelledby="q-${queue}">
    <div class="top">
      <h2 id="q-${queue}">${queue}: ${counted(jobs.length, 'job', 'jobs')}</h2>
      ${
        isOperator &&
        html`<div class="row">
          <a class="button small" href="/act/return?queue=${at}">Return all</a>
          <a class="button small" href="/act/drop?queue=${at}">Drop all</a>
        </div>`
      }
    </div>
    <div class="cards">${jobs.map((job) => cardOf(at, job, isOperator))}</div>
  </section>`;
}

function cardOf(at: string, { jobId, failure, lane, sinceMs, inputBytes }: QuarantinedJob, isOperator: boolean): Html {
  const of = `queue=${at}&id=${encodeURIComponent(jobId)}`;
  return html`<article class="card">
    <h3>${jobId}</h3>
    <p><strong>${failure.code}</strong>: ${failure.message}</p>
    <p class="soft">
      Since ${timeText(sinceMs)}, last in ${lane === '' ? 'an unknown lane' : lane},
      ${inputBytes === 0 ? 'its texts are in the job' : `input of ${bytesText(inputBytes)}`}.
    </p>
    ${
      isOperator &&
      html`<div class="row">
        <a class="button small" href="/act/return?${of}">Return</a>
        <a class="button small" href="/act/drop?${of}">Drop</a>
      </div>`
    }
  </article>`;
}
