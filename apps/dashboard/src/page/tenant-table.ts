// Whose jobs wait: the tenants with most of it, over all queues.

import type { FleetReading } from '../fleet/fleet-reading.ts';
import { html, type Html } from './html.ts';
import { bytesText, spanText } from './words.ts';

const MOST_TENANTS = 12;

export function tenantTable({ queues }: FleetReading): Html {
  const all = queues
    .flatMap(({ queue, tenants }) => tenants.map((tenant) => ({ queue, ...tenant })))
    .filter(({ jobs, reservedRows }) => jobs + reservedRows > 0)
    .toSorted((a, b) => b.rows - a.rows || b.reservedRows - a.reservedRows);
  const shown = all.slice(0, MOST_TENANTS);
  return html`<table>
    <caption>
      As of some seconds ago, by the first 2,000 jobs in line of each queue.
      ${all.length > shown.length && `${all.length - shown.length} tenants more: shoal queue tenants`}
    </caption>
    <thead>
      <tr>
        <th scope="col">Tenant</th>
        <th scope="col">Queue</th>
        <th scope="col" class="n">Jobs that wait</th>
        <th scope="col" class="n">Rows</th>
        <th scope="col" class="n">Oldest interactive</th>
        <th scope="col" class="n">Oldest bulk</th>
        <th scope="col" class="n">Reserved rows</th>
        <th scope="col" class="n">Reserved</th>
      </tr>
    </thead>
    <tbody>
      ${
        shown.length === 0
          ? html`<tr>
              <td colspan="8">Nobody has jobs here.</td>
            </tr>`
          : shown.map(
              ({ queue, tenant, jobs, rows, oldestMs, reservedRows, reservedBytes }) =>
                html`<tr>
                  <th scope="row"><a href="/search?q=${encodeURIComponent(`${tenant}~*`)}">${tenant}</a></th>
                  <td>${queue}</td>
                  <td class="n">${jobs.toLocaleString('en')}</td>
                  <td class="n">${rows.toLocaleString('en')}</td>
                  <td class="n">${oldestMs.interactive === 0 ? '–' : spanText(oldestMs.interactive)}</td>
                  <td class="n">${oldestMs.bulk === 0 ? '–' : spanText(oldestMs.bulk)}</td>
                  <td class="n">${reservedRows.toLocaleString('en')}</td>
                  <td class="n">${bytesText(reservedBytes)}</td>
                </tr>`,
            )
      }
    </tbody>
  </table>`;
}
