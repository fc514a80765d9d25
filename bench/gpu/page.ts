// The rows of a run as a page for people: a table per part, every figure as it was measured.

type Row = Readonly<Record<string, unknown>>;

const WITHOUT = new Set(['part', 'step', 'table', 'raw', 'curve']);

/** `lines`: rows.jsonl. */
export function page(lines: string): string {
  const rows = lines
    .split('\n')
    .filter(Boolean)
    .map((one) => JSON.parse(one) as Row)
    .map((row) => ({ ...row, part: row['part'] ?? row['step'] }));
  const parts = [...new Set(rows.map((row) => String(row.part)))];
  return `# GPU bench\n\n${parts
    .map((part) =>
      section(
        part,
        rows.filter((row) => String(row.part) === part),
      ),
    )
    .join('\n\n')}\n`;
}

function section(part: string, rows: readonly Row[]): string {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) => !WITHOUT.has(name));
  const head = [line(columns), line(columns.map(() => '---'))];
  const body = rows.map((row) => line(columns.map((name) => cell(row[name]))));
  const tables = rows.flatMap((row) =>
    Array.isArray(row['table'])
      ? [`\n\n${section(`${String(row['kind'])} ${String(row['shape'])}`, row['table'] as Row[])}`]
      : [],
  );
  return `## ${part}\n\n${[...head, ...body].join('\n')}${tables.join('')}`;
}

function line(cells: readonly string[]): string {
  return `| ${cells.join(' | ')} |`;
}

function cell(value: unknown): string {
  if (value === undefined || value === null) return '';
  return (typeof value === 'object' ? JSON.stringify(value) : String(value))
    .replaceAll('|', '\\|')
    .replaceAll('\n', ' ')
    .slice(0, 300);
}
