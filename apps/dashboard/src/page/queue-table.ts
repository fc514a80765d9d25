// The queues as a table: a row a lane, with how long the oldest of each class has waited, and what an operator may do.

import type { SurveyedQueue } from '@shoal/queue';
import { waitingIn, type FleetReading, type QueueReading } from '../fleet/fleet-reading.ts';
import { html, type Html } from './html.ts';
import { bytesText, spanText } from './words.ts';

export function queueTable(fleet: FleetReading, isOperator: boolean): Html {
  const rows = fleet.queues.flatMap((queue) => rowsOf(fleet, queue, isOperator));
  return html`<table>
    <caption>
      Ages are true ages of the oldest job that waits, by the server's clock. Handed over: waits in the CPU lane.
    </caption>
    <thead>
      <tr>
        <th scope="col">Lane</th>
        <th scope="col">State</th>
        <th scope="col" class="n">Workers</th>
        <th scope="col" class="n">Waiting</th>
        <th scope="col" class="n">Oldest interactive</th>
        <th scope="col" class="n">Oldest bulk</th>
        <th scope="col" class="n">Running</th>
        <th scope="col" class="n">Handed over</th>
        <th scope="col" class="n">Failed</th>
        <th scope="col" class="n">Reserved</th>
        <th scope="col" class="n">Unread</th>
        <th scope="col" class="n">Quarantine</th>
        ${isOperator && html`<th scope="col">Do</th>`}
      </tr>
    </thead>
    <tbody>
      ${
        rows.length === 0
          ? html`<tr>
              <td colspan="${isOperator ? 13 : 12}">There is no queue yet: the first job or worker makes one.</td>
            </tr>`
          : rows
      }
    </tbody>
  </table>`;
}

function rowsOf(fleet: FleetReading, reading: QueueReading, isOperator: boolean): readonly Html[] {
  const { queue, problem, lanes } = reading;
  if (problem !== undefined)
    return [
      html`<tr id="lane-${queue}">
        <th scope="row">${queue}</th>
        <td colspan="12">${problem}</td>
      </tr>`,
    ];
  const shown = lanes.filter((lane) => lane.queue === queue || hasAnything(lane));
  return shown.map((lane) => rowOf(fleet, reading, lane, isOperator));
}

function hasAnything(lane: SurveyedQueue): boolean {
  return waitingIn(lane) + lane.jobs.active + lane.jobs.failed + lane.live.length > 0;
}

function rowOf(
  { reservedBytes, unreadBytes }: FleetReading,
  { queue, quarantined, isAllDrained }: QueueReading,
  lane: SurveyedQueue,
  isOperator: boolean,
): Html {
  const isMain = lane.queue === queue;
  const state = lane.isPaused ? 'paused' : isAllDrained ? 'drained' : 'open';
  const at = encodeURIComponent(queue);
  return html`<tr id="lane-${lane.queue}">
    <th scope="row"><a href="/queues/queue/${encodeURIComponent(lane.queue)}">${lane.queue}</a></th>
    <td><span class="state ${state === 'open' ? 'good' : 'warn'}">${state}</span></td>
    <td class="n">${number(lane.live.length)}</td>
    <td class="n">${number(waitingIn(lane))}</td>
    <td class="n">${age(lane.oldestWaitingMs.interactive)}</td>
    <td class="n">${age(lane.oldestWaitingMs.bulk)}</td>
    <td class="n">${number(lane.jobs.active)}</td>
    <td class="n">${number(lane.jobs['handed-over'])}</td>
    <td class="n">${number(lane.jobs.failed)}</td>
    <td class="n">${isMain && bytesText(reservedBytes)}</td>
    <td class="n">${isMain && bytesText(unreadBytes)}</td>
    <td class="n">${isMain && (quarantined > 0 ? html`<a href="/quarantine?queue=${at}">${quarantined}</a>` : '0')}</td>
    ${
      isOperator &&
      html`<td>
        ${
          isMain &&
          html`<div class="row">
            ${
              lane.isPaused
                ? html`<a class="button small" href="/act/resume?queue=${at}">Resume</a>`
                : html`<a class="button small" href="/act/pause?queue=${at}">Pause</a>`
            }
            ${
              isAllDrained
                ? html`<a class="button small" href="/act/claim?queue=${at}&amp;worker=all">Claim again</a>`
                : html`<a class="button small" href="/act/drain?queue=${at}&amp;worker=all">Drain all</a>`
            }
            ${lane.jobs.failed > 0 && html`<a class="button small" href="/act/retry?queue=${at}">Retry failed</a>`}
          </div>`
        }
      </td>`
    }
  </tr>`;
}

function age(ms: number): string {
  return ms === 0 ? '–' : spanText(ms);
}

function number(count: number): string {
  return count.toLocaleString('en');
}
