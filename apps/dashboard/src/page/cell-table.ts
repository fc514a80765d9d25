// The cells as a table, a row each. Empty where there are none.

import type { CellReading } from '../fleet/cells-reading.ts';
import { html, type Html } from './html.ts';
import { spanText } from './words.ts';

export function cellTable(cells: readonly CellReading[] | undefined): Html {
  if (cells === undefined) return html``;
  return html`<table>
    <caption>
      All queues of each cell together. The rest of this page is about the cell that is home.
    </caption>
    <thead>
      <tr>
        <th scope="col">Cell</th>
        <th scope="col">State</th>
        <th scope="col" class="n">Workers</th>
        <th scope="col" class="n">Waiting</th>
        <th scope="col" class="n">The oldest waits</th>
        <th scope="col" class="n">Running</th>
        <th scope="col" class="n">Failed</th>
      </tr>
    </thead>
    <tbody>
      ${cells.map(rowOf)}
    </tbody>
  </table>`;
}

function rowOf({ name, isHome, write, seen }: CellReading): Html {
  const [state, tone] = stateOf({ write, seen });
  return html`<tr id="cell-${name}">
    <th scope="row">${name}${isHome && ' (home)'}</th>
    <td><span class="state ${tone}">${state}</span></td>
    <td class="n">${numberOf(seen?.workers)}</td>
    <td class="n">${numberOf(seen?.waiting)}</td>
    <td class="n">${seen === undefined || seen.oldestMs === 0 ? '–' : spanText(seen.oldestMs)}</td>
    <td class="n">${numberOf(seen?.active)}</td>
    <td class="n">${numberOf(seen?.failed)}</td>
  </tr>`;
}

function stateOf({ write, seen }: Pick<CellReading, 'write' | 'seen'>): readonly [words: string, tone: string] {
  if (seen === undefined) return ['away', 'bad'];
  if (seen.workers === 0) return [write ? 'no workers' : 'no workers, no new work', seen.waiting > 0 ? 'bad' : 'warn'];
  return write ? ['open', 'good'] : ['no new work', 'warn'];
}

function numberOf(count: number | undefined): string {
  return count === undefined ? '–' : count.toLocaleString('en');
}
