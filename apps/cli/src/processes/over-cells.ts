// A look at the queue, once for each cell where there are several. Reports come under the names of their cells; with
// --json as one object. A cell that is away is named with why, the others are shown, and the exit code says so.

import { ShoalError, isShoalError, toFailure } from '@shoal/contract';
import { homeCell, readCells, redactUrl, type Cell } from '@shoal/core';
import { sameCells } from '@shoal/queue';
import { settingsOf } from '../settings.ts';
import { print, say, type Terminal } from '../terminal.ts';

interface LookFlags {
  readonly json?: boolean;
}

/** With no cells: the look itself. */
export async function overCells<Flags extends LookFlags>(
  terminal: Terminal,
  flags: Flags,
  look: (terminal: Terminal, flags: Flags) => Promise<void>,
): Promise<void> {
  const { cells: setting, redisUrl, prefix } = await settingsOf(terminal, flags);
  if (setting === undefined) return look(terminal, flags);
  const cells = readCells(setting);
  const home = homeCell(cells, redisUrl, prefix).name;
  const twice = sameCells(cells, prefix);
  const told = await Promise.all(
    cells.map(async (cell) => ({ cell, ...(await reportOf(terminal, { ...flags, prefix }, cell, look)) })),
  );
  if (flags.json === true)
    for (const { cell, remarks } of told) if (remarks !== '') terminal.stderr.write(`cell ${cell.name}: ${remarks}`);
  await print(terminal, flags.json === true ? asJson(told, home) : told.map((one) => asText(one, home)).join('\n'));
  for (const line of await twice) say(terminal, `cells: ${line}`);
  refuseFailed(told);
}

interface Told {
  readonly cell: Cell;
  readonly report: string;
  /** What it says beside its report. */
  readonly remarks: string;
  readonly error: unknown;
}

async function reportOf<Flags extends LookFlags>(
  terminal: Terminal,
  flags: Flags & { readonly prefix: string },
  { address, prefix = flags.prefix }: Cell,
  look: (terminal: Terminal, flags: Flags) => Promise<void>,
): Promise<Omit<Told, 'cell'>> {
  const [report, remarks] = [new Kept(), new Kept()];
  const parts = { stdout: report.instead(terminal.stdout), stderr: remarks.instead(terminal.stderr) };
  const said = (error: unknown) => ({ report: report.text, remarks: remarks.text.replace(/^shoal: /gm, ''), error });
  try {
    await look({ ...terminal, ...parts }, { ...flags, redisUrl: address, prefix });
    return said(undefined);
  } catch (error) {
    if (terminal.signal.aborted) throw error;
    return said(error);
  }
}

/** What is written, for later. */
class Kept {
  text = '';

  instead(stream: NodeJS.WriteStream): NodeJS.WriteStream {
    const write = (text: string | Uint8Array): boolean => {
      this.text += String(text);
      return true;
    };
    return Object.assign(Object.create(stream) as NodeJS.WriteStream, { write });
  }
}

/** The address of a cell is said above, and another is no cure: what waits there waits. */
function problemOf(error: unknown): string {
  const { code, message } = toFailure(error);
  if (code !== 'QUEUE_UNREACHABLE') return message;
  return `${message.replace(/\. Start it, or set .*$/s, '')}; what waits there waits until it is back`;
}

function asText({ cell, report, remarks, error }: Told, home: string): string {
  const { name, address, prefix, write } = cell;
  const what = [...(name === home ? ['home'] : []), ...(write === false ? ['takes no new work'] : [])].join(', ');
  const problem = error === undefined ? '' : `! ${problemOf(error)}\n`;
  return `cell ${name}${what === '' ? '' : ` (${what})`}, ${redactUrl(address)}${prefix === undefined ? '' : ` under ${prefix}`}\n${report}${remarks}${problem}`;
}

function asJson(told: readonly Told[], home: string): string {
  const cells = told.map(({ cell: { name, address, prefix, write = true }, report, error }) => ({
    cell: name,
    address: redactUrl(address),
    ...(prefix !== undefined && { prefix }),
    isHome: name === home,
    write,
    ...(error === undefined ? {} : { error: toFailure(error) }),
    ...(report === '' ? {} : { report: JSON.parse(report) as unknown }),
  }));
  return `${JSON.stringify({ cells })}\n`;
}

/** A cell that is away is a failure; what one cell does not know another may. */
function refuseFailed(told: readonly Told[]): void {
  const failed = told.filter(({ error }) => error !== undefined);
  const away = failed.filter(({ error }) => !isShoalError(error) || error.code !== 'USAGE');
  if (failed.length === told.length) throw failed[0]!.error;
  if (away.length === 0) return;
  const names = away.map(({ cell }) => `"${cell.name}"`).join(', ');
  throw new ShoalError(
    toFailure(away[0]!.error).code,
    `${away.length} of ${told.length} cells could not be looked at: ${names}; the others were`,
    { cells: away.map(({ cell }) => cell.name) },
    away[0]!.error,
  );
}
