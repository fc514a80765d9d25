// A log line for somebody who sits before it: time of day, level, who, what, and the facts as name=value. Everything
// that the JSON line has is there, but for what such a person knows: the date, the process, the machine and the version.

const KNOWN = new Set(['level', 'time', 'pid', 'hostname', 'name', 'version', 'msg', 'err']);

/** `json`: a line as pino writes it. What is none comes back as it is. */
export function readableLine(json: string): string {
  const line = parsed(json);
  if (line === undefined) return json;
  const { level, time, name, msg, err } = line;
  const facts = Object.entries(line).flatMap(([key, value]) => (KNOWN.has(key) ? [] : [`${key}=${shown(value)}`]));
  const words = [timeOfDay(Number(time)), String(level).padEnd(5), `${String(name)}:`, msg];
  return `${[...words, ...facts].join(' ')}\n${err === undefined ? '' : errorLines(err)}`;
}

function parsed(json: string): Readonly<Record<string, unknown>> | undefined {
  try {
    const found: unknown = JSON.parse(json);
    return typeof found === 'object' && found !== null ? { ...found } : undefined;
  } catch {
    return undefined;
  }
}

function timeOfDay(epochMs: number): string {
  const at = new Date(epochMs);
  const seconds = [at.getHours(), at.getMinutes(), at.getSeconds()].map((part) => String(part).padStart(2, '0'));
  return `${seconds.join(':')}.${String(at.getMilliseconds()).padStart(3, '0')}`;
}

function shown(value: unknown): string {
  return typeof value === 'string' && /^[^\s"=]+$/.test(value) ? value : JSON.stringify(value);
}

/** The stack begins with type and message; what else an error carries stands behind it. */
function errorLines(error: unknown): string {
  if (typeof error !== 'object' || error === null) return `  ${shown(error)}\n`;
  const { type: _type, message, stack, ...more } = error as Readonly<Record<string, unknown>>;
  const lines = String(stack ?? message).split('\n');
  const facts = Object.entries(more).map(([key, value]) => `${key}=${shown(value)}`);
  return [...lines, ...facts].map((line) => `  ${line}\n`).join('');
}
