// What is told of several cells as one text: series of queues and of queue servers once a cell, with a label `cell`, all
// series of one metric together under one head, as Prometheus' format demands; what is of the process itself, once.

export interface CellText {
  readonly cell: string;
  /** As a registry gives it. */
  readonly text: string;
}

/** Metrics that are of a queue or its server, and not of the process that tells them. */
const OF_CELLS = /^shoal_(queue|exporter)_/;

export function cellsText(told: readonly CellText[]): string {
  const heads = new Map<string, string[]>();
  const series = new Map<string, string[]>();
  for (const [at, { cell, text }] of told.entries())
    for (const block of text.split(/^(?=# HELP )/m).filter((one) => one.startsWith('# HELP '))) {
      const name = block.split(' ', 3)[2]!;
      if (at > 0 && !OF_CELLS.test(name)) continue;
      const lines = block.split('\n').filter((line) => line !== '');
      if (!heads.has(name))
        heads.set(
          name,
          lines.filter((line) => line.startsWith('#')),
        );
      const found = lines.filter((line) => !line.startsWith('#'));
      const own = OF_CELLS.test(name) ? found.map((line) => withCell(line, cell)) : found;
      series.set(name, [...(series.get(name) ?? []), ...own]);
    }
  return `${[...heads].map(([name, head]) => [...head, ...series.get(name)!].join('\n')).join('\n\n')}\n`;
}

/** Names of cells need no escaping. */
function withCell(line: string, cell: string): string {
  const end = /[{ ]/.exec(line)?.index ?? line.length;
  const name = line.slice(0, end);
  const rest = line.slice(end);
  return rest.startsWith('{') ? `${name}{cell="${cell}",${rest.slice(1)}` : `${name}{cell="${cell}"}${rest}`;
}
