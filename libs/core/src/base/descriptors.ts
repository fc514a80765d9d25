// A process, or its machine, that can open nothing more: files, connections and pipes count alike. What it meets is an
// error of Node, of a library, or of a native one, somewhere below what was caught; here it becomes one sentence that
// says what was to be opened, what was found and what to do.

import { isShoalError, ShoalError } from '@shoal/contract';

/**
 * SETUP_FAILED when what was thrown, or a cause of it, says that no descriptor was left (EMFILE, ENFILE); undefined for
 * anything else. Whoever keeps the process starts it again: this passes.
 */
export function descriptorFailure(error: unknown): ShoalError<'SETUP_FAILED'> | undefined {
  const found = causeOf(error);
  if (found === undefined) return undefined;
  const { cause, code } = found;
  return new ShoalError('SETUP_FAILED', `${attemptOf(cause)}: ${descriptorCure(code)}`, { reason: code }, error);
}

type Code = 'EMFILE' | 'ENFILE';

function descriptorCure(code: Code): string {
  if (code === 'ENFILE')
    return 'this machine has as many files and connections open as it may (ENFILE); raise fs.file-max with sysctl';
  const limit = descriptorLimit();
  return (
    `this process has as many files and connections open as it may (EMFILE${limit === undefined ? '' : `, ${limit}`}); ` +
    'raise that with LimitNOFILE=65536 in its unit, or ulimit -n 65536'
  );
}

/** How many descriptors this process may have; undefined where the system does not tell. Needs none itself. */
export function descriptorLimit(): number | undefined {
  Reflect.set(process.report, 'excludeNetwork', true); // names of peers would be looked up
  const report: unknown = process.report.getReport();
  const limits: unknown = typeof report === 'object' && report !== null ? Reflect.get(report, 'userLimits') : undefined;
  const files: unknown = typeof limits === 'object' && limits !== null ? Reflect.get(limits, 'open_files') : undefined;
  const soft: unknown = typeof files === 'object' && files !== null ? Reflect.get(files, 'soft') : undefined;
  return typeof soft === 'number' ? soft : undefined;
}

interface Found {
  readonly cause: Error;
  readonly code: Code;
}

/** The innermost that says so: it knows what was to be opened. */
function causeOf(error: unknown): Found | undefined {
  if (!(error instanceof Error)) return undefined;
  const inner = [error.cause, ...(error instanceof AggregateError ? (error.errors as unknown[]) : [])];
  for (const cause of inner) {
    const found = causeOf(cause);
    if (found !== undefined) return found;
  }
  if (isShoalError(error)) return undefined; // has its own words
  const code = /\bE[MN]FILE\b/.exec(`${String(Reflect.get(error, 'code'))} ${error.message}`)?.[0];
  return code === undefined ? undefined : { cause: error, code: code as Code };
}

const ATTEMPTS: Readonly<Record<string, string>> = {
  listen: 'cannot listen on',
  connect: 'cannot connect to',
  open: 'cannot open',
  scandir: 'cannot read',
  spawn: 'cannot start',
};

function attemptOf(error: Error): string {
  const { syscall = '', path } = error as NodeJS.ErrnoException;
  const [call = ''] = syscall.split(' ');
  const attempt = ATTEMPTS[call];
  if (attempt === undefined) return 'cannot go on';
  const [address, port]: unknown[] = [Reflect.get(error, 'address'), Reflect.get(error, 'port')];
  if (typeof address === 'string') return `${attempt} ${address}${typeof port === 'number' ? `:${port}` : ''}`;
  return `${attempt} ${path ?? 'another process'}`;
}
